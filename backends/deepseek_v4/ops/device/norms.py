"""Device function of ``norms.rms_norm`` for a row held as a block."""

import triton
import triton.language as tl


@triton.jit
def rms_factor(row, DIM: tl.constexpr, eps):
    """One over the root mean square of ``row`` (fp32 [BLOCK], DIM values, then 0)."""
    return tl.rsqrt(tl.sum(row * row, axis=0) * (1.0 / DIM) + eps)


@triton.jit
def round_to(x, like):
    """fp32 values rounded to the type that the pointer ``like`` points at, as fp32."""
    return x.to(like.dtype.element_ty).to(tl.float32)
