"""StoredWeight: a matrix (or a stack of them) in the precision that it is stored in; knows no parameter names.

The byte formats are those of ``weights.storage``.
"""

from dataclasses import dataclass
from enum import Enum

import torch

from backends.deepseek_v4.weights.storage import dequantize_fp4, dequantize_fp8_blocks


class WeightFormat(Enum):
    """PLAIN fp32 or bf16; FP8 e4m3 in blocks of 128 x 128; FP4 e2m1 in blocks of 32 inputs."""

    PLAIN = "plain"
    FP8 = "fp8"
    FP4 = "fp4"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeight:
    """A weight [..., O, I] that maps I inputs to O outputs; leading dims count experts.

    values  PLAIN: fp32 or bf16 [..., O, I]; FP8: float8_e4m3fn [..., O, I]; FP4: int8 [..., O, I / 2]
    scales  None; FP8: float8_e8m0fnu [..., ceil(O / 128), ceil(I / 128)]; FP4: float8_e8m0fnu [..., O, I / 32]
    """

    values: torch.Tensor
    scales: torch.Tensor | None = None
    format: WeightFormat = WeightFormat.PLAIN

    @property
    def num_outputs(self) -> int:
        return self.values.shape[-2]

    @property
    def num_inputs(self) -> int:
        return self.values.shape[-1] * (2 if self.format is WeightFormat.FP4 else 1)

    @property
    def nbytes(self) -> int:
        """Bytes that one full read of the weight moves."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def dense(self) -> torch.Tensor:
        """The matrix in fp32 (PLAIN: as stored), [..., O, I]."""
        if self.scales is None:
            return self.values
        if self.format is WeightFormat.FP4:
            return dequantize_fp4(self.values, self.scales)
        if self.values.dim() == 2:
            return dequantize_fp8_blocks(self.values, self.scales)
        pairs = zip(self.values.flatten(0, -3), self.scales.flatten(0, -3), strict=True)
        return torch.stack([dequantize_fp8_blocks(v, s) for v, s in pairs]).view(self.values.shape)
