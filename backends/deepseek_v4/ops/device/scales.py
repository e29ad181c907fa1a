"""Device functions for power-of-two block scales, with the exact results of ``rows.scales``."""

import triton
import triton.language as tl

E8M0_BIAS = tl.constexpr(127)
E8M0_NAN = tl.constexpr(255)
FP8_MAX = tl.constexpr(448.0)
_LARGEST = tl.constexpr(3.4028234663852886e38)

# A limit is ``(1 + fraction) * 2 ** (exponent - 1)``; the fraction is given as fp32 mantissa bits.
FP8_EXPONENT = tl.constexpr(9)
FP8_FRACTION = tl.constexpr(0x600000)
FP4_EXPONENT = tl.constexpr(3)
FP4_FRACTION = tl.constexpr(0x400000)


@triton.jit
def finite_magnitudes(x):
    """Magnitudes of fp32 values; infinity counts as the largest fp32, NaN as 0."""
    size = tl.abs(x)
    return tl.minimum(tl.where(size == size, size, 0.0), _LARGEST)


@triton.jit
def scale_exponents(amax, EXPONENT: tl.constexpr, FRACTION: tl.constexpr):
    """Exponent e (int32) of the smallest 2^e with ``amax <= limit * 2^e``, for normal positive fp32 ``amax``."""
    bits = amax.to(tl.int32, bitcast=True)
    # frexp's exponent is the stored one less 126.
    return (bits >> 23) - 126 - EXPONENT + ((bits & 0x7FFFFF) > FRACTION).to(tl.int32)


@triton.jit
def power_of_two(exponents):
    """2^e as exact fp32 for int32 exponents from -126 to 127."""
    return ((exponents + E8M0_BIAS) << 23).to(tl.float32, bitcast=True)


@triton.jit
def e8m0_bytes(exponents):
    """ue8m0 byte of int32 exponents, as int32."""
    return tl.minimum(tl.maximum(exponents + E8M0_BIAS, 0), E8M0_NAN)


@triton.jit
def to_fp8(x):
    """fp8 e4m3 of fp32 values, clamped to its largest finite magnitude; NaN stays NaN."""
    low = tl.where(x < -FP8_MAX, -FP8_MAX, x)
    return tl.where(low > FP8_MAX, FP8_MAX, low).to(tl.float8e4nv)


@triton.jit
def round_to_bf16(x):
    """fp32 values rounded to bf16, as fp32."""
    return x.to(tl.bfloat16).to(tl.float32)
