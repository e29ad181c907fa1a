"""Fp8IndexCodec: the 132-byte indexer key row; knows nothing of scoring.

A row is ``dim`` fp8 e4m3 values and one fp32 scale per 128 of them (4 bytes, a power of two). A page keeps
all values first and all scales after them, the layout that DeepGEMM's paged logits read.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.hadamard import rotate
from backends.deepseek_v4.rows.scales import FP8_MAX, block_amax, power_of_two, scale_exponents, to_fp8
from specdec.errors import ConfigError

BLOCK = 128
SCALE_BYTES = 4
# The smallest exponent: ceil(log2(1e-10)), the floor that the original puts on amax / 448.
MIN_EXPONENT = -33


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8IndexCodec:
    """Indexer keys of ``dim`` values as fp8 with fp32 scales.

    Raises ConfigError unless dim is a power of two of at least 128.
    """

    dim: int

    def __post_init__(self) -> None:
        if self.dim < BLOCK or self.dim & (self.dim - 1):
            raise ConfigError(
                f"index_head_dim must be a power of two of at least {BLOCK} for fp8 indexer keys, "
                f"got {self.dim} (conf: target.indexer_dtype)"
            )

    @property
    def width(self) -> int:
        return self.dim

    @property
    def value_bytes(self) -> int:
        return self.dim

    @property
    def scale_bytes(self) -> int:
        return self.dim // BLOCK * SCALE_BYTES

    @property
    def page_multiple(self) -> int:
        return 1

    def encode(self, rows_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate and quantise: value bytes [X, dim] and scale bytes [X, 4 * dim / 128], uint8; NaN stays."""
        blocks = rotate(rows_XD).to(torch.float32).unflatten(-1, (-1, BLOCK))
        exponents = self._exponents(block_amax(blocks))
        codes = to_fp8(blocks * power_of_two(-exponents).unsqueeze(-1)).flatten(-2)
        return codes.view(torch.uint8), power_of_two(exponents).view(torch.uint8)

    def _exponents(self, amax_X: torch.Tensor) -> torch.Tensor:
        smallest = FP8_MAX * 2.0**MIN_EXPONENT
        return scale_exponents(amax_X.clamp(min=smallest), limit=FP8_MAX)

    def decode(self, values_XV: torch.Tensor, scales_XS: torch.Tensor) -> torch.Tensor:
        """Rotated keys [X, dim] in fp32 from value and scale bytes."""
        blocks = values_XV.view(torch.float8_e4m3fn).to(torch.float32).unflatten(-1, (-1, BLOCK))
        return (blocks * scales_XS.contiguous().view(torch.float32).unsqueeze(-1)).flatten(-2)
