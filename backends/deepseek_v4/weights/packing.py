"""The order in which bf16 products want quantised weights: no byte more or less, other places within 16 bytes.

A matrix unit of Hopper gives lane ``t`` of four the inputs ``8 b + 2 t + p`` (b, p: 0 or 1) of every 16. Packed, they
are one word of a row, and bits lie so that few instructions turn the word into pairs of bf16:

fp8  word t of every 16 inputs; its byte ``2 p + 1 - b`` is input ``8 b + 2 t + p``.
fp4  word t of every 32 inputs; its half ``p`` holds the inputs ``16 h + 8 b + 2 t + p`` (h: 0 or 1), with the sign of
     number ``2 h + b`` at bit SIGN_BITS and its magnitude (3 bits) from bit MAGNITUDE_BITS on.
"""

import torch

FP8_UNIT, FP4_UNIT = 16, 32
SIGN_BITS = (15, 12, 14, 13)
MAGNITUDE_BITS = (6, 3, 0, 9)


def pack_fp8(values: torch.Tensor) -> torch.Tensor:
    """e4m3 [..., I] in packed order; I is a multiple of 16."""
    units = values.view(torch.uint8).unflatten(-1, (-1, 2, 4, 2))  # unit, b, t, p
    return units.movedim(-3, -1).flip(-1).flatten(-4).contiguous().view(values.dtype)


def unpack_fp8(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of ``pack_fp8``."""
    units = packed.view(torch.uint8).unflatten(-1, (-1, 4, 2, 2))  # unit, t, p, 1 - b
    return units.flip(-1).movedim(-1, -3).flatten(-4).contiguous().view(packed.dtype)


def pack_fp4(values: torch.Tensor) -> torch.Tensor:
    """int8 [..., I / 2] in packed order; I is a multiple of 32. A stack is packed one by one, to need little memory."""
    if values.dim() > 2:
        return torch.stack([pack_fp4(each) for each in values])
    bytes_ = values.view(torch.uint8)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), dim=-1).flatten(-2)
    numbers = codes.unflatten(-1, (-1, 4, 4, 2)).transpose(-3, -2).int()  # unit, t, 2 h + b, p
    halves = torch.zeros_like(numbers[..., 0, :])
    for number, (sign, magnitude) in enumerate(zip(SIGN_BITS, MAGNITUDE_BITS, strict=True)):
        code = numbers[..., number, :]
        halves |= ((code >> 3) << sign) | ((code & 7) << magnitude)
    return halves.to(torch.int16).flatten(-3).contiguous().view(torch.int8)


def unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of ``pack_fp4``."""
    if packed.dim() > 2:
        return torch.stack([unpack_fp4(each) for each in packed])
    halves = packed.view(torch.int16).int().unflatten(-1, (-1, 4, 2))  # unit, t, p
    bits = zip(SIGN_BITS, MAGNITUDE_BITS, strict=True)
    numbers = [(((halves >> sign) & 1) << 3) | ((halves >> magnitude) & 7) for sign, magnitude in bits]
    codes = torch.stack(numbers, dim=-3).flatten(-4)  # unit, 2 h + b, t, p
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8).view(torch.int8)
