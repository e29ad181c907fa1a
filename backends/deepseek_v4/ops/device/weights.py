"""Device functions that multiply a tile of a stored weight by rows of activations; knows no operator.

A tile of the weight is the left operand [M, K] of the product and the rows are the right one [K, N]: matrix units
want at least 64 on the left side and take 16 on the right, so few rows waste little. Bytes travel in storage precision
and become bf16 or fp32 in registers, which is exact for e4m3 and e2m1 times a power of two.

Products in bf16 (``EXACT`` false) accumulate in fp32; ``EXACT`` products are fp32 throughout, on ordinary units, and
decode quantised bytes by integer arithmetic, which every device and the interpreter do alike.
"""

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
FP8 = tl.constexpr(1)
FP4 = tl.constexpr(2)
FP8_BLOCK = tl.constexpr(128)
FP4_BLOCK = tl.constexpr(32)


@triton.jit
def float_of_e8m0(byte):
    """fp32 power of two of an e8m0 byte; 0 is the subnormal 2^-127."""
    wide = byte.to(tl.int32)
    return tl.where(wide == 0, 1 << 22, wide << 23).to(tl.float32, bitcast=True)


@triton.jit
def float_of_e4m3(byte):
    """fp32 value of an e4m3 byte; NaN codes do not occur in weights."""
    wide = byte.to(tl.int32)
    exponent, mantissa = (wide >> 3) & 15, wide & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    magnitude = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.001953125, normal)
    return tl.where(wide >= 128, -magnitude, magnitude)


@triton.jit
def float_of_e2m1(code):
    """fp32 value of an e2m1 code (int32, 0 to 15)."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    normal = (((exponent + 126) << 23) | (mantissa << 22)).to(tl.float32, bitcast=True)
    magnitude = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.5, normal)
    return tl.where(code >= 8, -magnitude, magnitude)


@triton.jit
def bf16_of_e4m3(byte):
    """bf16 value of e4m3 bytes, four at a time.

    An e4m3 code moved to the lowest exponent and highest mantissa bits of a bf16, subnormal or not, is its value times
    2^-120. The compiler's own conversion goes through fp16 at a sixteenth of the rate.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, scale;
        mov.b32 scale, 0x7b807b80;
        prmt.b32 a, $2, 0, 0x1404;
        prmt.b32 b, $2, 0, 0x3424;
        and.b32 $0, a, 0x7f007f00;
        and.b32 $1, b, 0x7f007f00;
        shr.u32 $0, $0, 4;
        shr.u32 $1, $1, 4;
        lop3.b32 $0, a, 0x80008000, $0, 0xea;
        lop3.b32 $1, b, 0x80008000, $1, 0xea;
        mul.rn.bf16x2 $0, $0, scale;
        mul.rn.bf16x2 $1, $1, scale;
        }
        """,
        constraints="=&r,=&r,r",
        args=[byte],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _load(pointers, k, num_k, WHOLE: tl.constexpr):
    """A weight tile, read once: first to leave the caches. Beyond ``num_k`` columns it is 0."""
    if WHOLE:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=k[None, :] < num_k, other=0, eviction_policy="evict_first")


@triton.jit
def load_rows(x_ptr, offsets_N, inside_N, step, num_inputs, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr):
    """Inputs of step ``step`` of rows of x as [K, N]; rows not inside and inputs beyond ``num_inputs`` are 0."""
    k = step * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = inside_N[None, :]
    if not WHOLE:
        inside = inside & (k < num_inputs)[:, None]
    return tl.load(x_ptr + k[:, None] + offsets_N[None, :], mask=inside, other=0.0)


@triton.jit
def fp8_scales(scales_ptr, scales_stride, rows_M, step, num_inputs, BLOCK_K: tl.constexpr):
    """fp32 scales [M] of rows of the weight for the inputs of step ``step``; BLOCK_K divides 128."""
    k0 = step * BLOCK_K
    pointers = scales_ptr + (rows_M // FP8_BLOCK) * scales_stride + k0 // FP8_BLOCK
    return float_of_e8m0(tl.load(pointers, mask=(k0 < num_inputs) & (rows_M >= 0), other=0))


@triton.jit
def multiply(
    acc, values_ptr, values_stride, scales_ptr, scales_stride, rows_M, fp8_scale_M, x_KN, step, num_inputs,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """``acc`` [M, N] plus rows of the weight times ``x_KN``, over the BLOCK_K inputs of step ``step``.

    values_ptr, scales_ptr  of the whole matrix, with their elements per row; rows_M must lie inside it
    fp8_scale_M             fp32 scales of this step (FP8 only, see ``fp8_scales``)
    """
    if FORMAT == FP4:
        pair = step * (BLOCK_K // 2) + tl.arange(0, BLOCK_K // 2)
        block = step * (BLOCK_K // FP4_BLOCK) + tl.arange(0, BLOCK_K // FP4_BLOCK)
        w = _load(values_ptr + rows_M[:, None] * values_stride + pair[None, :], pair, num_inputs // 2, WHOLE)
        scale_pointers = scales_ptr + rows_M[:, None] * scales_stride + block[None, :]
        scale = _load(scale_pointers, block, num_inputs // FP4_BLOCK, WHOLE)
        if EXACT:
            byte = w.to(tl.int32)
            codes = tl.join(float_of_e2m1(byte & 15), float_of_e2m1(byte >> 4))
            M: tl.constexpr = rows_M.shape[0]
            spread = codes.reshape(M, BLOCK_K // FP4_BLOCK, FP4_BLOCK) * float_of_e8m0(scale)[:, :, None]
            acc = tl.dot(spread.reshape(M, BLOCK_K), x_KN, acc, input_precision="ieee")
        else:
            acc = tl.dot_scaled(w, scale, "e2m1", x_KN, None, "bf16", acc, fast_math=True)
    else:
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        w = _load(values_ptr + rows_M[:, None] * values_stride + k[None, :], k, num_inputs, WHOLE)
        if FORMAT == PLAIN:
            acc = tl.dot(w.to(x_KN.dtype), x_KN, acc, input_precision="ieee")
        elif EXACT:
            acc += tl.dot(float_of_e4m3(w), x_KN, input_precision="ieee") * fp8_scale_M[:, None]
        else:
            acc += tl.dot(bf16_of_e4m3(w), x_KN) * fp8_scale_M[:, None]
    return acc
