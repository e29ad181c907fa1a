"""Rotary position embedding: frequencies of one kind of layer, angles of positions, rotation of trailing dims.

Pairs are interleaved (dims 2i and 2i + 1). It knows no layers; angles are values that a pass computes once and
hands to all layers of a kind.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from backends.deepseek_v4.config import RopeParameters, YarnScaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """Angles of a set of positions: ``cos`` and ``sin`` are float32 [..., dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor

    def per_head(self) -> "Rope":
        """The same angles with an axis of one for heads before the last."""
        return Rope(cos=self.cos.unsqueeze(-2), sin=self.sin.unsqueeze(-2))


def yarn_bounds(dim: int, theta: float, yarn: YarnScaling) -> tuple[float, float]:
    """Pair indices between which interpolation fades in (YaRN, arXiv:2309.00071, section 3.2)."""

    def pair_with(rotations: float) -> float:
        turns = yarn.original_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), dim - 1)
    return low, high if high != low else high + 0.001


def inverse_frequencies(rope: RopeParameters) -> torch.Tensor:
    """Radians per position of each pair, float32 [dim / 2] on the CPU, rounded once from float64."""
    pairs = torch.arange(rope.dim // 2, dtype=torch.float64, device="cpu")
    plain = rope.theta ** (-2 * pairs / rope.dim)
    if rope.yarn is None:
        return plain.float()
    low, high = yarn_bounds(rope.dim, rope.theta, rope.yarn)
    kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return (plain / rope.yarn.factor * (1 - kept) + plain * kept).float()


class Rotary(nn.Module):
    """Angles for positions. Holds the frequencies on the module's device, always in float32."""

    def __init__(self, rope: RopeParameters) -> None:
        super().__init__()
        self.rope = rope
        frequencies = inverse_frequencies(rope).to(torch.get_default_device())
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Rotary":
        # Casting a model to bf16 or materialising it from the meta device must not touch the frequencies.
        super()._apply(fn, recurse)
        self.inv_freq = inverse_frequencies(self.rope).to(self.inv_freq.device)
        return self

    def forward(self, positions: torch.Tensor) -> Rope:
        """Angles [..., dim / 2] of integer positions [...]."""
        angles = positions.unsqueeze(-1).float() * self.inv_freq
        return Rope(cos=angles.cos(), sin=angles.sin())


def apply_rope(x: torch.Tensor, rope: Rope, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the last dims of ``x`` [..., d] by angles that broadcast to [..., dim / 2]; returns ``x``'s dtype.

    ``inverse=True`` undoes the rotation.
    """
    cos, sin = rope.cos, -rope.sin if inverse else rope.sin
    dim = 2 * cos.shape[-1]
    rotated = x[..., -dim:].float().unflatten(-1, (-1, 2))
    even, odd = rotated.unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
    return turned if dim == x.shape[-1] else torch.cat((x[..., :-dim], turned), dim=-1)
