"""Kernels: which implementation of its operators a pass runs; knows no operator."""

from enum import Enum


class Kernels(Enum):
    """Implementation of the operators in ``backends.deepseek_v4.ops``.

    REFERENCE  plain torch, any device
    TRITON     Triton kernels
    FLASH_MLA  Triton kernels, and FlashMLA for sparse attention (Hopper, fp8 rows, 64 or 128 heads)
    """

    REFERENCE = "reference"
    TRITON = "triton"
    FLASH_MLA = "flash_mla"
