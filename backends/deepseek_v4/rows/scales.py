"""Power-of-two block scales, computed exactly; knows nothing of pages.

A block scale is the smallest power of two ``2^e`` with ``amax <= limit * 2^e``, where ``limit`` is the
largest magnitude of the element type. The exponent comes from the bits of ``amax`` (frexp), not from a
floating-point logarithm: fp32 ``log2`` is one too low for an ``amax`` just above ``limit * 2^k``.

A ue8m0 byte ``b`` means ``2^(b - 127)``; byte 255 means NaN.
"""

import math

import torch

E8M0_BIAS = 127
E8M0_NAN = 255
FP8_MAX = 448.0
FP4_MAX = 6.0

_LARGEST = torch.finfo(torch.float32).max


def block_amax(blocks_XB: torch.Tensor) -> torch.Tensor:
    """Largest magnitude over the last dimension [X]; infinity counts as the largest fp32, NaN as 0."""
    return blocks_XB.abs().nan_to_num(nan=0.0, posinf=_LARGEST).amax(dim=-1)


def scale_exponents(amax_X: torch.Tensor, *, limit: float) -> torch.Tensor:
    """Exponent e (int32) of the smallest 2^e with ``amax <= limit * 2^e``, for positive fp32 ``amax_X``."""
    limit_mantissa, limit_exponent = math.frexp(limit)
    mantissa, exponent = torch.frexp(amax_X)
    return exponent - limit_exponent + (mantissa > limit_mantissa).to(exponent.dtype)


def power_of_two(exponents_X: torch.Tensor) -> torch.Tensor:
    """2^e as exact fp32 for int32 exponents from -126 to 127."""
    return ((exponents_X + E8M0_BIAS) << 23).view(torch.float32)


def e8m0_bytes(exponents_X: torch.Tensor) -> torch.Tensor:
    """ue8m0 byte (uint8) of int32 exponents."""
    return (exponents_X + E8M0_BIAS).clamp(0, E8M0_NAN).to(torch.uint8)


def e8m0_values(bytes_X: torch.Tensor) -> torch.Tensor:
    """fp32 value of ue8m0 bytes."""
    return bytes_X.view(torch.float8_e8m0fnu).to(torch.float32)


def to_fp8(values_X: torch.Tensor) -> torch.Tensor:
    """fp8 e4m3 of fp32 values, clamped to its largest finite magnitude; NaN stays NaN."""
    return values_X.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
