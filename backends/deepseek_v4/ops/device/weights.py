"""Device functions that multiply a tile of a stored weight by rows of activations; knows no operator.

A tile of the weight is the left operand [M, K] of the product and the rows are the right one [K, N]: matrix units
want at least 64 on the left side and take 16 on the right, so few rows waste little. Bytes travel in storage precision
and become bf16 or fp32 in registers, which is exact for e4m3 and e2m1 times a power of two.

Products in bf16 (``EXACT`` false) accumulate in fp32 and take plain bf16 or packed weights. ``EXACT`` products are fp32
throughout, on ordinary units, and take plain weights and quantised ones that are not packed; they decode bytes by
integer arithmetic, which every device and the interpreter do alike.

Packed words (``weights.packing``) reach the registers of a matrix instruction's left side without a shuffle. Their
codes are shifted to where a bf16 has its lowest exponents; one multiplication repairs that and, for fp4, applies the
scale. So that its factor is a bf16, too, fp4 tiles come out 2^-63 times too small: exact for scales from 2^-64 to 2^64.
That is undone, as scales of fp8 are applied, on the product of every step; a sum that stayed in the matrix unit would
make the compiler wait after each of its instructions.
"""

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
FP8 = tl.constexpr(1)
FP4 = tl.constexpr(2)
PACKED_FP8 = tl.constexpr(3)
PACKED_FP4 = tl.constexpr(4)
FP8_BLOCK = tl.constexpr(128)
FP4_BLOCK = tl.constexpr(32)
# Packed fp4 is multiplied as 2^-63 times itself, and the product by 2^63.
SHIFT = tl.constexpr(63)
UNSHIFT = tl.constexpr(2.0**63)


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
def bf16_of_fp8_word(word):
    """The four e4m3 values of packed words as bf16, in the order (b, p) of the packing.

    An e4m3 code moved to the lowest exponent and highest mantissa bits of a bf16, subnormal or not, is its value times
    2^-120.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, sign, factor;
        mov.b32 factor, 0x7b807b80;
        shr.u32 a, $4, 4;
        and.b32 a, a, 0x07f007f0;
        lop3.b32 a, $4, 0x80008000, a, 0xea;
        shl.b32 b, $4, 4;
        and.b32 b, b, 0x07f007f0;
        shl.b32 sign, $4, 8;
        lop3.b32 b, sign, 0x80008000, b, 0xea;
        mul.rn.bf16x2 a, a, factor;
        mul.rn.bf16x2 b, b, factor;
        mov.b32 {$0, $1}, a;
        mov.b32 {$2, $3}, b;
        }
        """,
        constraints="=h,=h,=h,=h,r",
        args=[word],
        dtype=(tl.bfloat16,) * 4,
        is_pure=True,
        pack=1,
    )


@triton.jit
def bf16_of_fp4_word(word, factor):
    """The eight e2m1 values of packed words as bf16 times ``factor`` times 2^-126, in the order (h, b, p).

    An e2m1 code moved to the lowest exponent and highest mantissa bits of a bf16 is its value times 2^-126.
    Number 2 is shifted twice, sign and magnitude, by one multiplication: none of its bits meet.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, c, d, sign;
        and.b32 a, $8, 0x81c081c0;
        shl.b32 b, $8, 3;
        and.b32 b, b, 0x81c081c0;
        and.b32 c, $8, 0x40074007;
        mul.lo.u32 c, c, 66;
        and.b32 c, c, 0x81c081c0;
        shr.u32 d, $8, 3;
        and.b32 d, d, 0x01c001c0;
        shl.b32 sign, $8, 2;
        lop3.b32 d, sign, 0x80008000, d, 0xea;
        mul.rn.bf16x2 a, a, $9;
        mul.rn.bf16x2 b, b, $9;
        mul.rn.bf16x2 c, c, $9;
        mul.rn.bf16x2 d, d, $9;
        mov.b32 {$0, $1}, a;
        mov.b32 {$2, $3}, b;
        mov.b32 {$4, $5}, c;
        mov.b32 {$6, $7}, d;
        }
        """,
        constraints="=h,=h,=h,=h,=h,=h,=h,=h,r,r",
        args=[word, factor],
        dtype=(tl.bfloat16,) * 8,
        is_pure=True,
        pack=1,
    )


@triton.jit
def bf16_pair_of_power(exponent):
    """Two bf16 of 2^(exponent - 127) in a word."""
    return (exponent << 7) * 0x10001


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
def fp8_scale(scales_ptr, step, num_inputs, BLOCK_K: tl.constexpr):
    """e8m0 code of a row of scales for the inputs of step ``step``; BLOCK_K divides 128. Beyond ``num_inputs`` 0."""
    k0 = step * BLOCK_K
    return tl.load(scales_ptr + k0 // FP8_BLOCK, mask=k0 < num_inputs, other=0).to(tl.int32)


@triton.jit
def _packed_fp8(values_M, step, num_inputs, M: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr):
    """A packed tile as bf16 [M, K] without its scales."""
    word = step * (BLOCK_K // 4) + tl.arange(0, BLOCK_K // 4)
    v00, v01, v10, v11 = bf16_of_fp8_word(_load(values_M[:, None] + word[None, :], word, num_inputs // 4, WHOLE))
    values = tl.join(tl.join(v00, v01), tl.join(v10, v11))  # word, p, b
    return values.reshape(M, BLOCK_K // 16, 4, 2, 2).permute(0, 1, 4, 2, 3).reshape(M, BLOCK_K)


@triton.jit
def _packed_fp4(values_M, scales_M, step, num_inputs, M: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr):
    """A packed tile as bf16 [M, K] times 2^-63."""
    WORDS: tl.constexpr = BLOCK_K // 8
    BLOCKS: tl.constexpr = BLOCK_K // 32
    word = step * WORDS + tl.arange(0, WORDS)
    block = step * BLOCKS + tl.arange(0, BLOCKS)
    words = _load(values_M[:, None] + word[None, :], word, num_inputs // 8, WHOLE)
    codes = _load(scales_M[:, None] + block[None, :], block, num_inputs // FP4_BLOCK, WHOLE)
    factor = bf16_pair_of_power(codes.to(tl.int32) + (126 - SHIFT))
    factor = tl.broadcast_to(factor[:, :, None], (M, BLOCKS, 4)).reshape(M, WORDS)
    v000, v001, v010, v011, v100, v101, v110, v111 = bf16_of_fp4_word(words, factor)
    low = tl.join(tl.join(v000, v001), tl.join(v010, v011))
    high = tl.join(tl.join(v100, v101), tl.join(v110, v111))
    values = tl.join(low, high)  # word, p, b, h
    return values.reshape(M, BLOCKS, 4, 2, 2, 2).permute(0, 1, 5, 4, 2, 3).reshape(M, BLOCK_K)


@triton.jit
def _fp4_in_order(values_M, scales_M, step, num_inputs, M: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr):
    """A tile that is not packed as fp32 [M, K]."""
    pair = step * (BLOCK_K // 2) + tl.arange(0, BLOCK_K // 2)
    block = step * (BLOCK_K // FP4_BLOCK) + tl.arange(0, BLOCK_K // FP4_BLOCK)
    byte = _load(values_M[:, None] + pair[None, :], pair, num_inputs // 2, WHOLE).to(tl.int32)
    scale = _load(scales_M[:, None] + block[None, :], block, num_inputs // FP4_BLOCK, WHOLE)
    values = tl.join(float_of_e2m1(byte & 15), float_of_e2m1(byte >> 4))
    values = values.reshape(M, BLOCK_K // FP4_BLOCK, FP4_BLOCK) * float_of_e8m0(scale)[:, :, None]
    return values.reshape(M, BLOCK_K)


@triton.jit
def _multiply(
    acc, values_M, scales_M, upper, lower, x_KN, step, num_inputs,
    FORMAT: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """``acc`` [M, N] plus rows of the weight times ``x_KN``, over the BLOCK_K inputs of step ``step``."""
    M: tl.constexpr = acc.shape[0]
    scale = float_of_e8m0(upper)
    if HALVES:
        scale = tl.where((tl.arange(0, M) < M // 2)[:, None], scale, float_of_e8m0(lower))
    if FORMAT == PACKED_FP8:
        acc += tl.dot(_packed_fp8(values_M, step, num_inputs, M, BLOCK_K, WHOLE), x_KN) * scale
    elif FORMAT == PACKED_FP4:
        acc += tl.dot(_packed_fp4(values_M, scales_M, step, num_inputs, M, BLOCK_K, WHOLE), x_KN) * UNSHIFT
    elif FORMAT == FP4:
        w = _fp4_in_order(values_M, scales_M, step, num_inputs, M, BLOCK_K, WHOLE)
        acc = tl.dot(w, x_KN, acc, input_precision="ieee")
    else:
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        w = _load(values_M[:, None] + k[None, :], k, num_inputs, WHOLE)
        if FORMAT == FP8:
            acc += tl.dot(float_of_e4m3(w), x_KN, input_precision="ieee") * scale
        else:
            acc = tl.dot(w.to(x_KN.dtype), x_KN, acc, input_precision="ieee")
    return acc


@triton.jit
def multiply_rows(
    values_M, scales_M, upper_scales_ptr, lower_scales_ptr, x_ptr, x_offset_N, inside_N, first_step, num_inputs,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """fp32 [M, N] of rows of a weight times rows of x, over STEPS steps of BLOCK_K inputs each.

    values_M          pointers to the rows of the weight (to words of 4 bytes if packed)
    scales_M          pointers to the scales of the rows (FP4 only)
    upper_scales_ptr  scales that all rows share (FP8 only), of the upper half of the rows with HALVES ...
    lower_scales_ptr  ... and of the lower half
    x_offset_N        where the rows of x begin; those not ``inside_N`` count as 0
    """
    M: tl.constexpr = values_M.shape[0]
    N: tl.constexpr = x_offset_N.shape[0]
    IS_FP8: tl.constexpr = FORMAT == FP8 or FORMAT == PACKED_FP8
    acc = tl.zeros((M, N), dtype=tl.float32)
    upper = tl.cast(0, tl.int32)
    lower = upper
    if IS_FP8:
        upper = fp8_scale(upper_scales_ptr, first_step, num_inputs, BLOCK_K)
        if HALVES:
            lower = fp8_scale(lower_scales_ptr, first_step, num_inputs, BLOCK_K)
    for each in range(STEPS):
        step = first_step + each
        x_KN = load_rows(x_ptr, x_offset_N, inside_N, step, num_inputs, BLOCK_K, WHOLE)
        if EXACT:
            x_KN = x_KN.to(tl.float32)
        next_upper, next_lower = upper, lower
        if IS_FP8:
            # One step ahead: the loop does not wait for it.
            next_upper = fp8_scale(upper_scales_ptr, step + 1, num_inputs, BLOCK_K)
            if HALVES:
                next_lower = fp8_scale(lower_scales_ptr, step + 1, num_inputs, BLOCK_K)
        acc = _multiply(acc, values_M, scales_M, upper, lower, x_KN, step, num_inputs, FORMAT, BLOCK_K, WHOLE, HALVES)
        upper, lower = next_upper, next_lower
    return acc
