"""Rounding weights to what their checkpoint storage holds, so that training sees what inference will load.

The gradient passes straight through: the optimizer keeps the unrounded masters. The formats are those of
``backends.deepseek_v4.weights.storage``, so a rounded weight is bit-equal to the stored one.
"""

from enum import Enum

import torch

from backends.deepseek_v4.weights.names import sources_of
from backends.deepseek_v4.weights.storage import (
    FP8_BLOCK,
    dequantize_fp4,
    dequantize_fp8_blocks,
    quantize_fp4,
    quantize_fp8_blocks,
)
from backends.deepseek_v4.weights.writer import as_stored


class Storage(Enum):
    """How a matrix is stored."""

    FP8 = "fp8"
    FP4 = "fp4"
    BF16 = "bf16"


_BY_DTYPE = {torch.float8_e4m3fn: Storage.FP8, torch.int8: Storage.FP4, torch.bfloat16: Storage.BF16}


def storage_of(name: str, value: torch.Tensor) -> Storage:
    """Storage of a matrix parameter, by its official name."""
    return _BY_DTYPE[as_stored(sources_of(name, 1)[0], value)]


@torch.no_grad()
def round_to_storage(matrices_XRC: torch.Tensor, storage: Storage) -> torch.Tensor:
    """The values [X, R, C] that storing and loading gives, float32."""
    if storage is Storage.BF16:
        return matrices_XRC.to(torch.bfloat16).float()
    if storage is Storage.FP4:
        return dequantize_fp4(*quantize_fp4(matrices_XRC))
    if matrices_XRC.shape[-2] % FP8_BLOCK == 0:
        flat = matrices_XRC.flatten(0, 1)
        return dequantize_fp8_blocks(*quantize_fp8_blocks(flat)).view_as(matrices_XRC)
    return torch.stack([dequantize_fp8_blocks(*quantize_fp8_blocks(m)) for m in matrices_XRC])
