"""Quantised storage of weights: fp8 in 128 x 128 blocks and fp4 in blocks of 32; knows no parameter names.

fp8 (linears)   e4m3 values [O, I] beside e8m0 scales [ceil(O/128), ceil(I/128)]; one scale a block.
fp4 (experts)   two e2m1 codes a byte along the input axis, int8 [O, I/2], beside e8m0 scales [O, I/32];
                element 2j sits in the low nibble, element 2j+1 in the high one.

A scale is the power of two 2^ceil(log2(max|x| / largest)), found exactly through ``frexp`` (a rounded log2 is one
too low just above a power of two). Source of the formats: the DeepSeek-V4 checkpoints (v4 config fields
``expert_dtype``, ``quantization_config.scale_fmt``).
"""

import torch

FP8_BLOCK = 128
FP8_LARGEST = 448.0
FP4_BLOCK = 32
FP4_LARGEST = 6.0
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
SMALLEST_EXPONENT = -127
LARGEST_EXPONENT = 127


def scale_exponents(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """``ceil(log2(amax / largest))`` exactly, int32, clamped to what e8m0 holds; an all-zero block gets the lowest."""
    mantissa, exponent = torch.frexp(amax.double() / largest)
    exponents = torch.where(mantissa > 0.5, exponent, exponent - 1)
    exponents = torch.where(amax > 0, exponents, SMALLEST_EXPONENT)
    return exponents.clamp(SMALLEST_EXPONENT, LARGEST_EXPONENT).int()


def exponents_to_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """e8m0 scale values of integer exponents."""
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """fp32 ``2^e``, exact down to the subnormal 2^-127."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def e8m0_to_float(scales: torch.Tensor) -> torch.Tensor:
    """fp32 powers of two of e8m0 scales (or of their raw uint8 bytes)."""
    return powers_of_two(scales.view(torch.uint8).int() - 127)


def _expand_blocks(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[ceil(O/128), ceil(I/128)] -> [O, I]."""
    wide = scales.repeat_interleave(FP8_BLOCK, dim=0).repeat_interleave(FP8_BLOCK, dim=1)
    return wide[:rows, :columns]


def quantize_fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 or bf16 [O, I] -> (e4m3 [O, I], e8m0 [ceil(O/128), ceil(I/128)])."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.view(padded.shape[0] // FP8_BLOCK, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)
    exponents = scale_exponents(blocks.abs().amax(dim=(1, 3)), FP8_LARGEST)
    scaled = weight.float() / _expand_blocks(powers_of_two(exponents), rows, columns)
    values = scaled.clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
    return values, exponents_to_e8m0(exponents)


def dequantize_fp8_blocks(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(e4m3 [O, I], e8m0 scales) -> fp32 [O, I]."""
    return values.float() * _expand_blocks(e8m0_to_float(scales), *values.shape)


def quantize_fp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 or bf16 [..., I] with I a multiple of 32 -> (int8 [..., I/2], e8m0 [..., I/32])."""
    blocks = weight.float().unflatten(-1, (-1, FP4_BLOCK))
    exponents = scale_exponents(blocks.abs().amax(dim=-1), FP4_LARGEST)
    scaled = (blocks / powers_of_two(exponents)[..., None]).flatten(-2)
    thresholds = torch.tensor(FP4_THRESHOLDS, device=weight.device)
    codes = torch.bucketize(scaled.abs(), thresholds)
    codes = torch.where((scaled < 0) & (codes > 0), codes + 8, codes).to(torch.uint8)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed.view(torch.int8), exponents_to_e8m0(exponents)


def dequantize_fp4(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(int8 [..., I/2], e8m0 [..., I/32]) -> fp32 [..., I]."""
    bytes_ = packed.view(torch.uint8).long()
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)
    table = torch.tensor(FP4_MAGNITUDES + tuple(-m for m in FP4_MAGNITUDES), device=packed.device)
    return table[codes] * e8m0_to_float(scales).repeat_interleave(FP4_BLOCK, dim=-1)
