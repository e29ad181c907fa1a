"""Mxfp4IndexCodec: the 68-byte indexer key row; knows nothing of scoring.

A row is ``dim`` 4-bit codes, two a byte (even element in the low nibble), and one ue8m0 scale per 32 of
them. A code is the index of the magnitude in {0, .5, 1, 1.5, 2, 3, 4, 6}, bit 3 is the sign. A page keeps all
values first and all scales after them. Format: OCP Microscaling (MX) 1.0, with ties rounded towards zero.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.hadamard import rotate
from backends.deepseek_v4.rows.scales import (
    E8M0_NAN,
    FP4_MAX,
    block_amax,
    e8m0_bytes,
    e8m0_values,
    power_of_two,
    scale_exponents,
)
from specdec.errors import ConfigError

BLOCK = 32
AMAX_FLOOR = 1e-4
# A magnitude at or below a threshold keeps the lower code.
THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
SIGN_BIT = 8


def fp4_codes(values_X: torch.Tensor) -> torch.Tensor:
    """4-bit codes (uint8) of values that are already divided by their block scale; code 0 carries no sign."""
    magnitude = values_X.abs()
    codes = sum((magnitude > t).to(torch.uint8) for t in THRESHOLDS)
    return codes + SIGN_BIT * ((values_X < 0) & (codes > 0)).to(torch.uint8)


def fp4_values(codes_X: torch.Tensor) -> torch.Tensor:
    """fp32 values of 4-bit codes (e2m1: two exponent bits, one mantissa bit)."""
    exponent = ((codes_X >> 1) & 3).to(torch.int32)
    mantissa = (codes_X & 1).to(torch.float32)
    normal = (1 + 0.5 * mantissa) * power_of_two(exponent - 1)
    magnitude = torch.where(exponent == 0, 0.5 * mantissa, normal)
    return torch.where(codes_X >= SIGN_BIT, -magnitude, magnitude)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp4IndexCodec:
    """Indexer keys of ``dim`` values as MXFP4.

    Raises ConfigError unless dim is a power of two of at least 32.
    """

    dim: int

    def __post_init__(self) -> None:
        if self.dim < BLOCK or self.dim & (self.dim - 1):
            raise ConfigError(
                f"index_head_dim must be a power of two of at least {BLOCK} for mxfp4 indexer keys, "
                f"got {self.dim} (conf: target.indexer_dtype)"
            )

    @property
    def width(self) -> int:
        return self.dim

    @property
    def value_bytes(self) -> int:
        return self.dim // 2

    @property
    def scale_bytes(self) -> int:
        return self.dim // BLOCK

    @property
    def page_multiple(self) -> int:
        return 1

    def encode(self, rows_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate and quantise: packed codes [X, dim / 2] and scale bytes [X, dim / 32] (uint8).

        4-bit codes cannot hold NaN, so a block that contains one gets the NaN scale and reads back as NaN.
        """
        blocks = rotate(rows_XD).to(torch.float32).unflatten(-1, (-1, BLOCK))
        exponents = scale_exponents(block_amax(blocks).clamp(min=AMAX_FLOOR), limit=FP4_MAX)
        codes = fp4_codes(blocks * power_of_two(-exponents).unsqueeze(-1)).flatten(-2)
        scales = e8m0_bytes(exponents).masked_fill(blocks.isnan().any(dim=-1), E8M0_NAN)
        return codes[..., 0::2] | (codes[..., 1::2] << 4), scales

    def decode(self, values_XV: torch.Tensor, scales_XS: torch.Tensor) -> torch.Tensor:
        """Rotated keys [X, dim] in fp32 from packed codes and scale bytes."""
        codes = torch.stack([values_XV & 15, values_XV >> 4], dim=-1).flatten(-2)
        blocks = fp4_values(codes).unflatten(-1, (-1, BLOCK))
        return (blocks * e8m0_values(scales_XS).unsqueeze(-1)).flatten(-2)
