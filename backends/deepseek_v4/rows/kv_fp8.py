"""Fp8KvCodec: the 584-byte K/V row of FlashMLA; knows nothing of which layer it serves.

A row of head dim 512 is 448 fp8 e4m3 values in 7 blocks of 64, 64 rotated bf16 values, 7 ue8m0 block scales
and one zero byte. A page keeps its 576-byte value records first and its 8-byte scale records after them, and
is padded to a multiple of 576 bytes (FlashMLA's tensor map on sm100 walks the pages with that stride).

Layout and quantiser: FlashMLA, sparse decode of "MODEL1" rows, with the floor on ``amax`` (as the writers of
serving engines have it) instead of on ``amax / 448`` (as FlashMLA's own tests have it).
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.scales import (
    FP8_MAX,
    block_amax,
    e8m0_bytes,
    e8m0_values,
    power_of_two,
    scale_exponents,
    to_fp8,
)
from specdec.errors import ConfigError

BLOCK = 64
AMAX_FLOOR = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8KvCodec:
    """K/V rows of ``head_dim`` values, the last ``rope_dim`` of them kept as bf16.

    Raises ConfigError when the quantised part is empty or not a multiple of 64.
    """

    head_dim: int
    rope_dim: int

    def __post_init__(self) -> None:
        if self.nope_dim <= 0 or self.nope_dim % BLOCK:
            raise ConfigError(
                f"head_dim - rope_dim must be a positive multiple of {BLOCK} for an fp8 cache, got "
                f"{self.head_dim} - {self.rope_dim} = {self.nope_dim} (conf: target.cache_dtype)"
            )

    @property
    def width(self) -> int:
        return self.head_dim

    @property
    def nope_dim(self) -> int:
        return self.head_dim - self.rope_dim

    @property
    def value_bytes(self) -> int:
        """Bytes of a value record: 576 for V4."""
        return self.nope_dim + 2 * self.rope_dim

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale record: one per block and one zero byte, 8 for V4."""
        return self.nope_dim // BLOCK + 1

    @property
    def page_multiple(self) -> int:
        """A page is a whole number of value records."""
        return self.value_bytes

    def encode(self, rows_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Value records [X, value_bytes] and scale records [X, scale_bytes] (uint8) of rotated rows.

        The two kinds of row differ only in what the caller rotates: a sliding-window row is rotated in fp32 after it
        was rounded to the activation type, a compressed row is rotated in fp32 without any rounding before.

        Everything is rounded to bf16 before a block's maximum is taken. NaN stays NaN in its own element; an
        infinity, or a magnitude that rounds up to 2^128, reads back as infinity.
        """
        rounded = rows_XD.to(torch.bfloat16)
        nope, rope = rounded.split((self.nope_dim, self.rope_dim), dim=-1)
        blocks = nope.to(torch.float32).unflatten(-1, (-1, BLOCK))
        exponents = scale_exponents(block_amax(blocks).clamp(min=AMAX_FLOOR), limit=FP8_MAX)
        codes = to_fp8(blocks * power_of_two(-exponents).unsqueeze(-1)).flatten(-2)
        values = torch.cat([codes.view(torch.uint8), rope.contiguous().view(torch.uint8)], dim=-1)
        return values, torch.nn.functional.pad(e8m0_bytes(exponents), (0, 1))

    def decode(self, values_XV: torch.Tensor, scales_XS: torch.Tensor) -> torch.Tensor:
        """Rows [X, head_dim] in bf16 from value and scale records."""
        codes, rope = values_XV.split((self.nope_dim, 2 * self.rope_dim), dim=-1)
        blocks = codes.view(torch.float8_e4m3fn).to(torch.float32).unflatten(-1, (-1, BLOCK))
        nope = (blocks * e8m0_values(scales_XS[..., :-1]).unsqueeze(-1)).flatten(-2).to(torch.bfloat16)
        return torch.cat([nope, rope.contiguous().view(torch.bfloat16)], dim=-1)
