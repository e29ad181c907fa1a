"""Tiles of the expert kernels for an H200; how such tables are chosen is told in ``ops.linear.tiles``.

The first product's tile is half gate and half up matrix. At one token 7 experts of width 2048 make 448 programs of 32
outputs each for 132 multiprocessors, and the second product 448 of 64. Where the shared expert is stored otherwise
than the routed ones, programs of both kinds share a launch: their tiles are equally high and have as many stages.
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
        first=Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
        second=Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    ),
    WeightFormat.FP8: ExpertTiles(
        first=Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
        second=Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    ),
    WeightFormat.FP4: ExpertTiles(
        first=Tile(block_outputs=64, block_inputs=256, stages=3, warps=4),
        second=Tile(block_outputs=64, block_inputs=256, stages=3, warps=4),
    ),
}


def choose_tiles(weight_format: WeightFormat, rows: int, *, exact: bool) -> ExpertTiles:
    """Tiles for blocks of ``rows`` pairs; ``exact`` for fp32 products. More rows leave room for fewer stages."""
    if exact:
        return EXACT_TILES
    tiles = TILES[weight_format]
    if rows < 64:
        return tiles
    return ExpertTiles(first=replace(tiles.first, stages=3), second=replace(tiles.second, stages=3))


def row_block(num_tokens: int, k: int, num_experts: int) -> int:
    """Pairs of a block: 16 while an expert's expected share is half of that, then 32 or 64."""
    share = num_tokens * k / num_experts
    if num_tokens <= 16 or share <= 8:
        return 16
    return 32 if share <= 16 else 64
