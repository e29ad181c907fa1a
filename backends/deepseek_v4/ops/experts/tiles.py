"""Tiles of the expert kernels for an H200; how such tables are chosen is told in ``ops.linear.tiles``.

The first product holds a tile of the gate and one of the up matrix in each stage. At one token 7 experts of width 2048
make 224 programs of 64 outputs for 132 multiprocessors, each with two stages of 32 KB on their way and two programs of
them on a multiprocessor; the second product makes 448.
"""

from dataclasses import dataclass, replace

from backends.deepseek_v4.ops.linear.tiles import EXACT_TILE, Tile
from backends.deepseek_v4.stored_weight import WeightFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertTiles:
    """``first`` of the gate and up product, ``second`` of the down product."""

    first: Tile
    second: Tile


EXACT_TILES = ExpertTiles(first=EXACT_TILE, second=EXACT_TILE)
# By format; as in ``ops.linear.tiles`` all tiles of a format use one matrix instruction.
TILES = {
    WeightFormat.PLAIN: ExpertTiles(
        first=Tile(block_outputs=64, block_inputs=128, stages=3, warps=4),
        second=Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    ),
    WeightFormat.FP8: ExpertTiles(
        first=Tile(block_outputs=32, block_inputs=128, stages=4, warps=2),
        second=Tile(block_outputs=32, block_inputs=128, stages=6, warps=2),
    ),
    WeightFormat.FP4: ExpertTiles(
        first=Tile(block_outputs=32, block_inputs=256, stages=3, warps=2),
        second=Tile(block_outputs=32, block_inputs=256, stages=4, warps=2),
    ),
}


def choose_tiles(weight_format: WeightFormat, rows: int, *, exact: bool) -> ExpertTiles:
    """Tiles for blocks of ``rows`` pairs; ``exact`` for fp32 products.

    Of a quantised format, more rows are spread over more warps, as their sums would not fit into registers.
    """
    if exact:
        return EXACT_TILES
    tiles = TILES[weight_format]
    if weight_format is WeightFormat.PLAIN or rows <= 16:
        return tiles
    return ExpertTiles(first=replace(tiles.first, warps=4), second=replace(tiles.second, warps=4))


def row_block(num_tokens: int, k: int, num_experts: int) -> int:
    """Pairs of a block: 16 while an expert's expected share is half of that, then 32 or 64."""
    share = num_tokens * k / num_experts
    if num_tokens <= 16 or share <= 8:
        return 16
    return 32 if share <= 16 else 64
