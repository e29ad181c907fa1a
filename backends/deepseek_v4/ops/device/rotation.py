"""Device functions for rotary embedding: interleaved pairs among the last dims of rows held as blocks.

They compute in fp32, element by element, exactly as ``rope.apply_rope``; a kernel that must agree with it to the last
bit is launched with ``enable_fp_fusion=False``. Angles of a token are a record ``[cosines R | sines R]`` of fp32.
"""

import triton
import triton.language as tl


@triton.jit
def load_angles(record_ptr, DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """Cosine and sine [BLOCK / 2] of the pairs of a row of DIM values (even) whose last 2 * PAIRS are rotated.

    Pairs that are not rotated have cosine 1 and sine 0. BLOCK is a power of two, at least DIM and at least 2.
    """
    pair = tl.arange(0, BLOCK // 2) - (DIM // 2 - PAIRS)
    inside = (pair >= 0) & (pair < PAIRS)
    cos = tl.load(record_ptr + pair, mask=inside, other=1.0)
    sin = tl.load(record_ptr + PAIRS + pair, mask=inside, other=0.0)
    return cos, sin


@triton.jit
def _turn(even, odd, cos, sin, INVERSE: tl.constexpr):
    if INVERSE:
        return even * cos + odd * sin, odd * cos - even * sin
    return even * cos - odd * sin, even * sin + odd * cos


@triton.jit
def rotate_row(row, cos, sin, DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, INVERSE: tl.constexpr):
    """``row`` (fp32 [BLOCK], DIM values) rotated by what ``load_angles`` gave; others keep their bits."""
    even, odd = tl.split(tl.reshape(row, [BLOCK // 2, 2]))
    even, odd = _turn(even, odd, cos, sin, INVERSE)
    turned = tl.reshape(tl.join(even, odd), [BLOCK])
    place = tl.arange(0, BLOCK)
    return tl.where((place >= DIM - 2 * PAIRS) & (place < DIM), turned, row)


@triton.jit
def rotate_rows(
    rows, cos, sin,
    NUM: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """``rows`` (fp32 [NUM, BLOCK]) of one token, each as in ``rotate_row``; NUM is a power of two."""
    even, odd = tl.split(tl.reshape(rows, [NUM, BLOCK // 2, 2]))
    even, odd = _turn(even, odd, cos[None, :], sin[None, :], INVERSE)
    turned = tl.reshape(tl.join(even, odd), [NUM, BLOCK])
    place = tl.arange(0, BLOCK)[None, :]
    return tl.where((place >= DIM - 2 * PAIRS) & (place < DIM), turned, rows)
