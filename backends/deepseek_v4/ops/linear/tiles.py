"""Tiles: how a product of few rows is cut, for an H200 (132 multiprocessors, 4.3 TB/s).

Such a product takes the time of reading its weight, so the cut has two aims: at every moment about 64 KB or more are on
their way to each multiprocessor (4.3 TB/s times about 1 us of latency is 33 KB), and all multiprocessors finish
together. Bytes on their way = programs that share a multiprocessor x (stages - 1) x bytes of a tile; programs share it
while ``stages`` tiles of the weight and of x fit into 227 KB of shared memory for each.

What fixes the bits of a row: the parts that the inputs are cut into, and the order of inputs inside a part. Both come
from the weight's sizes and format alone (``choose_splits``). ``Tile`` may depend on the number of rows, too: a block of
outputs and the number of stages change who computes a value, never how. A part is whole units of ``SPLIT_UNIT`` inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backends.deepseek_v4.stored_weight import WeightFormat

NUM_PROCESSORS = 132
SPLIT_UNIT = 256
MOST_SPLITS = 16
SPLIT_OUTPUTS = 64
# What one more part costs whoever adds them up, as a share of the product's time.
COST_OF_PART = 0.05
ROW_BLOCKS = (16, 32, 64)
# Programs of fp8 products that a multiprocessor holds at once.
CROWD = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A program's step: ``block_outputs`` x ``block_inputs`` of the weight, ``stages`` of them in flight."""

    block_outputs: int
    block_inputs: int
    stages: int
    warps: int


# Tiles of bf16 products by format and rows of a block. All use one matrix instruction (wgmma: 64 outputs for 4 warps),
# or the bits of a row would change with the number of rows. It takes stored bf16 straight from shared memory and packed
# weights from registers, where every warp decodes outputs of its own. Decoding keeps processors as busy as reading
# does, so several programs on each count for more than stages. A step of fp4 has 4 bytes of scales for a thread at
# least: fewer are not copied ahead.
TILES = {
    (WeightFormat.PLAIN, 16): Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    (WeightFormat.PLAIN, 32): Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    (WeightFormat.PLAIN, 64): Tile(block_outputs=64, block_inputs=128, stages=3, warps=4),
    (WeightFormat.FP8, 16): Tile(block_outputs=64, block_inputs=128, stages=5, warps=4),
    (WeightFormat.FP8, 32): Tile(block_outputs=64, block_inputs=128, stages=5, warps=4),
    (WeightFormat.FP8, 64): Tile(block_outputs=64, block_inputs=128, stages=4, warps=4),
    (WeightFormat.FP4, 16): Tile(block_outputs=64, block_inputs=256, stages=3, warps=4),
    (WeightFormat.FP4, 32): Tile(block_outputs=64, block_inputs=256, stages=3, warps=4),
    (WeightFormat.FP4, 64): Tile(block_outputs=128, block_inputs=256, stages=3, warps=8),
}
# fp32 products run on ordinary units and are not tuned.
EXACT_TILE = Tile(block_outputs=32, block_inputs=32, stages=2, warps=4)


def row_block(num_rows: int) -> int:
    """Rows that share one read of the weight: 16, 32 or 64."""
    return next((rows for rows in ROW_BLOCKS if num_rows <= rows), ROW_BLOCKS[-1])


def choose_tile(weight_format: WeightFormat, rows: int, num_outputs: int, num_parts: int, *, exact: bool) -> Tile:
    """Tile of a product of blocks of ``rows`` rows; ``exact`` for fp32 products.

    Where there are more programs than run at once, fewer stages let one more begin while others end.
    """
    if exact:
        return EXACT_TILE
    tile = TILES[weight_format, rows]
    num_programs = -(-num_outputs // tile.block_outputs) * num_parts
    if weight_format is WeightFormat.FP8 and num_programs > CROWD * NUM_PROCESSORS:
        return replace(tile, stages=3)
    return tile


def choose_splits(num_outputs: int, num_inputs: int) -> int:
    """Parts that the inputs are cut into: the fewest that keep the multiprocessors evenly busy.

    The time is that of the multiprocessor with the most tiles; one and a half programs for each are wanted at least,
    as a single one has too few bytes on their way.
    """
    return choose_joint_splits((num_outputs,), num_inputs)


def choose_joint_splits(outputs: Sequence[int], num_inputs: int) -> int:
    """The same for products of one input with as many parts each, launched one after the other."""
    units = -(-num_inputs // SPLIT_UNIT)

    def cost(splits: int) -> float:
        units_each = -(-units // splits)
        num_parts = -(-units // units_each)
        busy = sum(_busy(-(-each // SPLIT_OUTPUTS) * num_parts) for each in outputs)
        return busy * units_each * (1 + COST_OF_PART * splits)

    # Parts of one size: their kernel has no masks.
    return min((each for each in range(1, MOST_SPLITS + 1) if units % each == 0), key=cost)


def _busy(num_programs: int) -> float:
    """Programs that the busiest multiprocessor runs one after the other, and what too few programs make of that."""
    share = max(num_programs / NUM_PROCESSORS, 1.5)
    # Beyond eight programs each, unevenness at the end is lost in the whole.
    share = share if share > 8 else -(-num_programs // NUM_PROCESSORS)
    return max(share, 1) * max(1.0, 1.5 * NUM_PROCESSORS / num_programs)
