"""pass_angles in torch: the maths of ``rope.Rotary``."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.pass_values import PassAngles


def pass_angles(
    positions_T: torch.Tensor,
    window_freqs_R: torch.Tensor,
    compress_freqs_R: torch.Tensor | None,
    kinds: tuple[AttentionKind, ...],
) -> PassAngles:
    """See ``pass_angles`` of the package."""
    positions_T = positions_T.clamp(min=0)
    if compress_freqs_R is None:
        return PassAngles(window=_angles(positions_T, window_freqs_R), compress=None, entries={})
    return PassAngles(
        window=_angles(positions_T, window_freqs_R),
        compress=_angles(positions_T, compress_freqs_R),
        entries={kind: _angles(positions_T - positions_T % kind.ratio, compress_freqs_R) for kind in kinds},
    )


def _angles(positions_T: torch.Tensor, freqs_R: torch.Tensor) -> torch.Tensor:
    """float32 [T, 2, R]"""
    angles_TR = positions_T.unsqueeze(-1).float() * freqs_R
    return torch.stack((angles_TR.cos(), angles_TR.sin()), dim=1)
