"""choose in Triton: one pass over the logits, blocks of the vocabulary side by side, then a launch that joins them.

The number of blocks depends on the vocabulary alone, so a row's token does not depend on what shares the launch.
"""

import torch
import triton
import triton.language as tl

from specdec.noise import VocabularyNoise
from specdec.ops.early import EarlyKernel, begin

BLOCK_V = 2048

# The mixing of specdec.noise, whose words these reproduce bit for bit.
GAMMA = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
MIX_A = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
MIX_B = tl.constexpr(0x94D049BB133111EB - 2**64)
SIGN = tl.constexpr(-(2**63))
TO_UNIT = tl.constexpr((1.0 - 2.0**-24) * 2.0**-63)
LARGEST_LOGIT = tl.constexpr(1e30)


@triton.jit
def row_key(stream, position):
    """Key of a draw of salt 0, the target's own."""
    x = stream + position * GAMMA
    return (x ^ (x >> 30)) * MIX_A


@triton.jit
def noise_words(key, words):
    """Negative int64 with 63 random bits for a row's key and the words of vocabulary ids."""
    x = (key ^ words) * MIX_A
    # The shift keeps the sign, as torch's does.
    x = x ^ (x >> 32)
    return (x * MIX_B) | SIGN


@triton.jit
def log_exponentials(words):
    """Logarithm of the standard exponential ``-log1p(words / 2**63)``."""
    u = words.to(tl.float32) * TO_UNIT
    # log1p without the loss of small u: the error of rounding 1 + u cancels in the quotient.
    above = 1.0 + u
    quotient = u / tl.where(above == 1.0, 1.0, above - 1.0)
    log1p = tl.where(above == 1.0, u, tl.log(above) * quotient)
    return tl.log(-log1p)


@EarlyKernel
@triton.jit
def _block(
    logits_ptr, row_stride, positions_ptr, streams_ptr, inverse_ptr, greedy_ptr, words_ptr, best_ptr, ids_ptr, V,
    WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    req = row // WIDTH
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    logits = tl.load(logits_ptr + row * row_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    logits = tl.where(logits == logits, tl.minimum(logits, LARGEST_LOGIT), float("-inf"))
    scores = logits * tl.load(inverse_ptr + req)
    if tl.load(greedy_ptr + req) == 0:
        words = tl.load(words_ptr + ids, mask=inside, other=0)
        key = row_key(tl.load(streams_ptr + req), tl.load(positions_ptr + req) + row % WIDTH)
        scores = scores - log_exponentials(noise_words(key, words))
    best, place = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * NUM_BLOCKS + block, best)
    tl.store(ids_ptr + row * NUM_BLOCKS + block, block * BLOCK + place)


@EarlyKernel
@triton.jit
def _join(best_ptr, ids_ptr, out_ptr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * NUM_BLOCKS + blocks, mask=blocks < NUM_BLOCKS, other=float("-inf"))
    _, place = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out_ptr + row, tl.load(ids_ptr + row * NUM_BLOCKS + place).to(tl.int64))


def choose(
    logits_BNV: torch.Tensor,
    positions_B: torch.Tensor,
    *,
    streams_B: torch.Tensor,
    inverse_temperature_B: torch.Tensor,
    greedy_B: torch.Tensor,
    noise: VocabularyNoise,
) -> torch.Tensor:
    """See ``specdec.ops.choose.choose``; vectors are contiguous."""
    num_reqs, width, vocab_size = logits_BNV.shape
    logits_RV = logits_BNV.reshape(-1, vocab_size)
    if logits_RV.stride(1) != 1:
        logits_RV = logits_RV.contiguous()
    num_rows, num_blocks, device = len(logits_RV), triton.cdiv(vocab_size, BLOCK_V), logits_RV.device
    best_RX = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    ids_RX = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=device)
    out_BN = torch.empty(num_reqs, width, dtype=torch.int64, device=device)
    if num_rows == 0:
        return out_BN
    _block[num_rows, num_blocks](
        logits_RV, logits_RV.stride(0), positions_B, streams_B, inverse_temperature_B, greedy_B, noise.words_V,
        best_RX, ids_RX, vocab_size, WIDTH=width, NUM_BLOCKS=num_blocks, BLOCK=BLOCK_V, num_warps=8,
    )  # fmt: skip
    width_of_join = triton.next_power_of_2(num_blocks)
    _join[(num_rows,)](best_RX, ids_RX, out_BN, NUM_BLOCKS=num_blocks, BLOCK=width_of_join, num_warps=1)
    return out_BN
