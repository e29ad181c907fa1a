"""pass_angles: all rotations of a packed pass; which implementation."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.pass_angles import reference
from backends.deepseek_v4.pass_values import PassAngles

__all__ = ["pass_angles"]


def pass_angles(
    positions_T: torch.Tensor,
    window_freqs_R: torch.Tensor,
    compress_freqs_R: torch.Tensor | None,
    kinds: tuple[AttentionKind, ...],
    *,
    kernels: Kernels,
) -> PassAngles:
    """Cosines and sines of the positions of a pass, float32, in one launch.

    positions_T       int32 (any stride); padding, below 0, counts as 0
    window_freqs_R    float32 ``Rotary.inv_freq`` of window-only layers
    compress_freqs_R  that of compressing layers, as long; None without any
    kinds             kinds with compressed rows, whose blocks begin at ``p - p % ratio``

    An angle is the float32 product of position and frequency, as ``Rotary`` has it; both functions reduce it by as
    many digits of pi as it needs, so they are right to 2 units in the last place at any position.
    """
    assert compress_freqs_R is not None or not kinds, "compressing layers have frequencies"
    assert compress_freqs_R is None or compress_freqs_R.shape == window_freqs_R.shape, (
        "all layers rotate alike many dims"
    )
    if kernels is Kernels.REFERENCE:
        return reference.pass_angles(positions_T, window_freqs_R, compress_freqs_R, kinds)
    from backends.deepseek_v4.ops.pass_angles import kernel

    return kernel.pass_angles(positions_T, window_freqs_R, compress_freqs_R, kinds)
