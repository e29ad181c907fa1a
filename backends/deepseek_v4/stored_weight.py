"""StoredWeight: a matrix (or a stack of them) in the precision that it is stored in; knows no parameter names.

The byte formats are those of ``weights.storage``; ``weights.packing`` has the order of packed ones.
"""

from dataclasses import dataclass, replace
from enum import Enum

import torch

from backends.deepseek_v4.weights.packing import FP4_UNIT, FP8_UNIT, pack_fp4, pack_fp8, unpack_fp4, unpack_fp8
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
    packed  FP8 and FP4: values lie in the order that kernels of bf16 products read
    """

    values: torch.Tensor
    scales: torch.Tensor | None = None
    format: WeightFormat = WeightFormat.PLAIN
    packed: bool = False

    @property
    def num_outputs(self) -> int:
        """Rows of the weight, each of which makes one output."""
        return self.values.shape[-2]

    @property
    def num_inputs(self) -> int:
        """Columns of the weight, whatever its storage."""
        return self.values.shape[-1] * (2 if self.format is WeightFormat.FP4 else 1)

    @property
    def nbytes(self) -> int:
        """Bytes that one full read of the weight moves."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def pack(self) -> "StoredWeight":
        """The same matrix for bf16 products; itself if it is packed, plain, or has a width that cannot be packed."""
        unit = FP4_UNIT if self.format is WeightFormat.FP4 else FP8_UNIT
        if self.packed or self.format is WeightFormat.PLAIN or self.num_inputs % unit != 0:
            return self
        pack = pack_fp4 if self.format is WeightFormat.FP4 else pack_fp8
        return replace(self, values=pack(self.values), packed=True)

    def unpack(self) -> "StoredWeight":
        """The same matrix in the order of ``weights.storage``."""
        if not self.packed:
            return self
        unpack = unpack_fp4 if self.format is WeightFormat.FP4 else unpack_fp8
        return replace(self, values=unpack(self.values), packed=False)

    def dense(self) -> torch.Tensor:
        """The matrix in fp32 (PLAIN: as stored), [..., O, I]."""
        if self.scales is None:
            return self.values
        values = self.unpack().values
        if self.format is WeightFormat.FP4:
            return dequantize_fp4(values, self.scales)
        if values.dim() == 2:
            return dequantize_fp8_blocks(values, self.scales)
        pairs = zip(values.flatten(0, -3), self.scales.flatten(0, -3), strict=True)
        return torch.stack([dequantize_fp8_blocks(v, s) for v, s in pairs]).view(values.shape)
