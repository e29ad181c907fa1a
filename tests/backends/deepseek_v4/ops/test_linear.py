"""linear: stored weights of every format, split, grouped, and the same bits for a row whatever else is in the pass."""

from collections.abc import Iterator

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.linear import joint_linear, linear
from backends.deepseek_v4.ops.linear.tiles import SPLIT_UNIT, choose_joint_splits, choose_splits
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from backends.deepseek_v4.weights.storage import quantize_fp4, quantize_fp8_blocks

FORMATS = tuple(WeightFormat)


@pytest.fixture(autouse=True)
def _on_device() -> Iterator[None]:
    """Kernels run where they can: compiled on a GPU, interpreted elsewhere."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def make_weight(
    num_outputs: int, num_inputs: int, weight_format: WeightFormat, *, dtype: torch.dtype = torch.float32
) -> StoredWeight:
    """Random values whose blocks differ in size, so that a wrong scale shows."""
    dense = torch.randn(num_outputs, num_inputs) * 2.0 ** torch.randint(-6, 3, (num_outputs, 1))
    if weight_format is WeightFormat.PLAIN:
        return StoredWeight(values=dense.to(dtype))
    quantize = quantize_fp8_blocks if weight_format is WeightFormat.FP8 else quantize_fp4
    values, scales = quantize(dense * 2.0 ** torch.randint(-3, 3, (1, num_inputs // 32)).repeat_interleave(32, 1))
    return StoredWeight(values=values, scales=scales, format=weight_format)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("weight_format", FORMATS)
def test_reference_multiplies_by_the_values_that_a_weight_stands_for(weight_format: WeightFormat) -> None:
    weight, x = make_weight(70, 96, weight_format), torch.randn(3, 96)
    parts = linear(x, weight, kernels=Kernels.REFERENCE)
    torch.testing.assert_close(parts, (x @ weight.dense().T).unsqueeze(0))


def test_groups_see_their_own_columns_only() -> None:
    weight, x = make_weight(6, 32, WeightFormat.PLAIN), torch.randn(4, 96)
    (y,) = linear(x, weight, groups=3, kernels=Kernels.REFERENCE)
    blocks = [x[:, 32 * g : 32 * g + 32] @ weight.values[2 * g : 2 * g + 2].T for g in range(3)]
    torch.testing.assert_close(y, torch.cat(blocks, dim=1))


@pytest.mark.usefixtures("nan_empty")
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs", "groups", "rows"), [(140, 288, 1, 3), (36, 320, 2, 17)])
def test_kernel_agrees_with_the_reference(
    weight_format: WeightFormat, outputs: int, inputs: int, groups: int, rows: int
) -> None:
    weight, x = make_weight(outputs, inputs, weight_format), torch.randn(rows, groups * inputs)
    (expected,) = linear(x, weight, groups=groups, kernels=Kernels.REFERENCE)
    parts = linear(x, weight, groups=groups, kernels=Kernels.TRITON)
    assert parts.shape[0] == choose_splits(outputs, inputs) > 1
    torch.testing.assert_close(parts.sum(0), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("nan_empty")
def test_kernel_reads_rows_that_are_not_adjacent_and_rows_between_nan() -> None:
    weight, wide = make_weight(33, 64, WeightFormat.PLAIN), torch.full((5, 96), torch.nan)
    wide[:, 16:80] = torch.randn(5, 64)
    x = wide[:, 16:80]
    (expected,) = linear(x, weight, kernels=Kernels.REFERENCE)
    (got,) = linear(x, weight, splits=1, kernels=Kernels.TRITON)
    torch.testing.assert_close(got, expected)


def test_result_of_a_row_has_the_same_bits_alone_and_among_others() -> None:
    weight, x = make_weight(40, 256, WeightFormat.FP8), torch.randn(20, 256)
    together = linear(x, weight, kernels=Kernels.TRITON)
    alone = linear(x[7:8], weight, kernels=Kernels.TRITON)
    assert torch.equal(together[:, 7:8], alone)


def test_one_part_is_rounded_once_to_the_type_asked_for() -> None:
    weight, x = make_weight(24, 64, WeightFormat.PLAIN), torch.randn(2, 64)
    rounded = linear(x, weight, splits=1, dtype=torch.bfloat16, kernels=Kernels.REFERENCE)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float()[0], x @ weight.values.T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [0, 129])
def test_any_number_of_rows_is_multiplied(rows: int) -> None:
    weight, x = make_weight(24, 160, WeightFormat.FP4), torch.randn(rows, 160)
    got = linear(x, weight, kernels=Kernels.TRITON)
    assert got.shape[1:] == (rows, 24)
    torch.testing.assert_close(got.sum(0), x @ weight.dense().T, rtol=1e-4, atol=1e-4)


def test_parts_are_whole_and_equal_where_the_inputs_allow_it() -> None:
    for outputs in (64, 1536, 4096, 4160, 32768):
        for inputs in (1024, 4096, 7168, 8192):
            units = inputs // SPLIT_UNIT
            assert units % choose_splits(outputs, inputs) == 0


@pytest.mark.usefixtures("nan_empty")
@pytest.mark.parametrize("rows", [3, 130])
def test_a_joint_product_is_that_of_all_rows_of_its_weights(rows: int) -> None:
    weights = (make_weight(40, 320, WeightFormat.FP8), make_weight(23, 320, WeightFormat.PLAIN))
    x = torch.randn(rows, 320)
    expected = x @ torch.cat([weight.dense() for weight in weights]).T
    for kernels in (Kernels.REFERENCE, Kernels.TRITON):
        parts = joint_linear(x, weights, kernels=kernels)
        torch.testing.assert_close(parts.sum(0), expected, rtol=1e-4, atol=1e-4)
    (alone,) = joint_linear(x, weights[:1], kernels=Kernels.REFERENCE)
    torch.testing.assert_close(alone, expected[:, :40], rtol=1e-4, atol=1e-4)


def test_a_joint_product_has_as_many_parts_for_any_number_of_rows() -> None:
    weights = (make_weight(40, 512, WeightFormat.FP8), make_weight(24, 512, WeightFormat.PLAIN))
    together = joint_linear(torch.randn(17, 512), weights, kernels=Kernels.TRITON)
    alone = joint_linear(torch.randn(1, 512), weights, kernels=Kernels.TRITON)
    assert together.shape[0] == alone.shape[0] == choose_joint_splits((40, 24), 512)


@pytest.mark.gpu
@pytest.mark.parametrize("weight_format", FORMATS)
def test_kernel_agrees_with_the_reference_in_bf16(weight_format: WeightFormat) -> None:
    weight = make_weight(1280, 1024, weight_format, dtype=torch.bfloat16).pack()
    x = torch.randn(64, 2048, dtype=torch.bfloat16)
    expected = linear(x, weight, groups=2, kernels=Kernels.REFERENCE)[0]
    for rows in (1, 16, 32, 64):
        parts = linear(x[:rows], weight, groups=2, kernels=Kernels.TRITON)
        assert relative_error(parts.sum(0), expected[:rows]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("weight_format", FORMATS)
def test_bits_of_a_row_do_not_depend_on_the_number_of_rows(weight_format: WeightFormat) -> None:
    weight = make_weight(1280, 1024, weight_format, dtype=torch.bfloat16).pack()
    x = torch.randn(300, 2048, dtype=torch.bfloat16)
    all_rows = linear(x, weight, groups=2, kernels=Kernels.TRITON)
    for rows in (1, 5, 16, 32, 64, 130):
        assert torch.equal(linear(x[:rows], weight, groups=2, kernels=Kernels.TRITON), all_rows[:, :rows])


@pytest.mark.gpu
def test_every_fp8_code_is_decoded_exactly_on_the_device() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes & 127 == 127] = 0  # NaN codes
    values = codes.expand(128, 256).contiguous().view(torch.float8_e4m3fn)
    scales = torch.tensor([[127 - 8, 127 + 3]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    weight = StoredWeight(values=values, scales=scales, format=WeightFormat.FP8).pack()
    for start in (0, 128):
        rows = torch.eye(256, dtype=torch.bfloat16)[start : start + 64]
        got = linear(rows, weight, kernels=Kernels.TRITON).sum(0)
        assert torch.equal(got, weight.dense().T[start : start + 64].contiguous())


@pytest.mark.gpu
def test_every_fp4_code_is_decoded_exactly_on_the_device() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(torch.int8).expand(64, 256).contiguous()
    scales = torch.arange(127 - 8, 127 + 8, dtype=torch.uint8).expand(64, 16).contiguous().view(torch.float8_e8m0fnu)
    weight = StoredWeight(values=packed, scales=scales, format=WeightFormat.FP4).pack()
    for start in range(0, 512, 64):
        rows = torch.eye(512, dtype=torch.bfloat16)[start : start + 64]
        got = linear(rows, weight, kernels=Kernels.TRITON).sum(0)
        assert torch.equal(got, weight.dense().T[start : start + 64].contiguous())


@pytest.mark.gpu
@pytest.mark.parametrize(("outputs", "inputs"), [(100, 288), (72, 1056)])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_sizes_that_no_tile_divides_in_bf16(weight_format: WeightFormat, outputs: int, inputs: int) -> None:
    weight, x = make_weight(outputs, inputs, weight_format, dtype=torch.bfloat16), torch.randn(64, inputs).bfloat16()
    expected = linear(x, weight, kernels=Kernels.REFERENCE)[0]
    for stored in (weight, weight.pack()):
        for rows in (3, 64):
            parts = linear(x[:rows], stored, kernels=Kernels.TRITON)
            assert relative_error(parts.sum(0), expected[:rows]) < 1e-5


@pytest.mark.gpu
def test_a_joint_product_in_bf16_of_packed_and_plain_weights() -> None:
    formats = (WeightFormat.FP8, WeightFormat.PLAIN)
    weights = [make_weight(192, 1024, each, dtype=torch.bfloat16).pack() for each in formats]
    x = torch.randn(5, 1024, dtype=torch.bfloat16)
    expected = joint_linear(x, weights, kernels=Kernels.REFERENCE).sum(0)
    assert relative_error(joint_linear(x, weights, kernels=Kernels.TRITON).sum(0), expected) < 1e-5


@pytest.mark.gpu
def test_fp32_rows_are_multiplied_in_fp32() -> None:
    x = torch.randn(5, 640)
    for weight_format in FORMATS:
        weight = make_weight(200, 640, weight_format)
        expected = x.double() @ weight.dense().double().T
        assert relative_error(linear(x, weight, kernels=Kernels.TRITON).sum(0), expected) < 1e-6
