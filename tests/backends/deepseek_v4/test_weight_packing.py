"""Packed order: nothing is lost, every 16 bytes keep their values, and a packed weight stands for the same matrix."""

import pytest
import torch

from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from backends.deepseek_v4.weights.packing import pack_fp4, pack_fp8, unpack_fp4, unpack_fp8
from backends.deepseek_v4.weights.storage import quantize_fp4, quantize_fp8_blocks


@pytest.mark.parametrize("lead", [(5,), (2, 3)])
def test_packing_is_undone_and_stays_within_16_bytes(lead: tuple[int, ...]) -> None:
    bytes_ = torch.randint(-128, 128, (*lead, 64), dtype=torch.int8)
    for pack, unpack in ((pack_fp4, unpack_fp4), (pack_fp8, unpack_fp8)):
        packed = pack(bytes_)
        assert packed.shape == bytes_.shape and packed.dtype == bytes_.dtype and packed.is_contiguous()
        assert torch.equal(unpack(packed), bytes_)
        assert not torch.equal(packed, bytes_)
        assert torch.equal(pack(bytes_[..., 16:32]), packed[..., 16:32])


def test_an_fp8_word_has_the_inputs_of_one_lane() -> None:
    packed = pack_fp8(torch.arange(16, dtype=torch.uint8)).view(4, 4)
    # Lane 1 of four: bytes of (b, p) = (1, 0), (0, 0), (1, 1), (0, 1) hold the inputs 8 b + 2 + p.
    assert packed[1].tolist() == [10, 2, 11, 3]


def test_an_fp4_word_has_the_inputs_of_one_lane() -> None:
    """The inputs 16 h + 8 b + 2 t + p of lane t = 3, one at a time: sign and magnitude lie where the kernel looks."""
    for half, sign, magnitude, first in ((0, 15, 6, 6), (1, 14, 0, 23), (0, 13, 9, 30)):
        codes = torch.zeros(32, dtype=torch.uint8)
        codes[first] = 0b1101
        packed = pack_fp4((codes[0::2] | (codes[1::2] << 4)).view(torch.int8)).view(torch.int16)
        expected = torch.zeros(8, dtype=torch.int64)
        expected[6 + half] = (1 << sign) | (0b101 << magnitude)
        assert torch.equal(packed.long() & 0xFFFF, expected)


@pytest.mark.parametrize("weight_format", [WeightFormat.FP8, WeightFormat.FP4])
def test_a_packed_weight_stands_for_the_same_matrix(weight_format: WeightFormat) -> None:
    dense = torch.randn(3, 40, 96)
    if weight_format is WeightFormat.FP4:
        values, scales = quantize_fp4(dense)
    else:
        parts = [quantize_fp8_blocks(each) for each in dense]
        values, scales = torch.stack([v for v, _ in parts]), torch.stack([s for _, s in parts])
    weight = StoredWeight(values=values, scales=scales, format=weight_format)
    packed = weight.pack()
    assert packed.packed and packed.pack() is packed
    assert (packed.num_outputs, packed.num_inputs, packed.nbytes) == (40, 96, weight.nbytes)
    assert torch.equal(packed.dense(), weight.dense())
    assert torch.equal(packed.unpack().values.view(torch.uint8), values.view(torch.uint8))


def test_plain_weights_and_widths_that_do_not_fit_stay_as_they_are() -> None:
    plain = StoredWeight(values=torch.randn(4, 32))
    assert plain.pack() is plain and plain.unpack() is plain
    values, scales = quantize_fp8_blocks(torch.randn(4, 24))
    odd = StoredWeight(values=values, scales=scales, format=WeightFormat.FP8)
    assert odd.pack() is odd
