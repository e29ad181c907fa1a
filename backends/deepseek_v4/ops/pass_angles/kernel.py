"""pass_angles in Triton: one launch, a program for each token and set of angles.

``tl.cos`` and ``tl.sin`` of float32 are libdevice's full-range functions, not the hardware's approximations.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.pass_values import PassAngles
from specdec.ops.early import EarlyKernel, begin


@EarlyKernel
@triton.jit(do_not_specialize=["positions_ptr", "position_stride"])
def _pass_angles(
    positions_ptr, position_stride, window_freqs_ptr, compress_freqs_ptr, out_ptr,
    RATIO_2: tl.constexpr, RATIO_3: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Sections: angles of window-only layers, of compressing layers, and of the blocks of up to two ratios."""
    begin(EARLY)
    token, num_tokens = tl.program_id(0), tl.num_programs(0)
    section = tl.program_id(1)
    position = tl.maximum(tl.load(positions_ptr + token * position_stride), 0)
    if section == 2:
        position -= position % RATIO_2
    if section == 3:
        position -= position % RATIO_3
    pairs = tl.arange(0, BLOCK)
    inside = pairs < R
    freqs_ptr = window_freqs_ptr if section == 0 else compress_freqs_ptr
    angles = position.to(tl.float32) * tl.load(freqs_ptr + pairs, mask=inside, other=0.0)
    line = out_ptr + (section * num_tokens + token) * (2 * R) + pairs
    tl.store(line, tl.cos(angles), mask=inside)
    tl.store(line + R, tl.sin(angles), mask=inside)


def pass_angles(
    positions_T: torch.Tensor,
    window_freqs_R: torch.Tensor,
    compress_freqs_R: torch.Tensor | None,
    kinds: tuple[AttentionKind, ...],
) -> PassAngles:
    """See ``pass_angles`` of the package."""
    assert len(kinds) <= 2, "the kernel knows two kinds of blocks"
    num_tokens, num_pairs = positions_T.shape[0], window_freqs_R.shape[0]
    num_sections = 1 if compress_freqs_R is None else 2 + len(kinds)
    angles_XT2R = torch.empty((num_sections, num_tokens, 2, num_pairs), dtype=torch.float32, device=positions_T.device)
    ratios = [kind.ratio for kind in kinds] + [1] * (2 - len(kinds))
    if num_tokens:
        _pass_angles[num_tokens, num_sections](
            positions_T, positions_T.stride(0), window_freqs_R.contiguous(),
            window_freqs_R if compress_freqs_R is None else compress_freqs_R.contiguous(), angles_XT2R,
            *ratios, R=num_pairs, BLOCK=triton.next_power_of_2(num_pairs), num_warps=1,
        )  # fmt: skip
    return PassAngles(
        window=angles_XT2R[0],
        compress=None if compress_freqs_R is None else angles_XT2R[1],
        entries={kind: angles_XT2R[2 + i] for i, kind in enumerate(kinds)},
    )
