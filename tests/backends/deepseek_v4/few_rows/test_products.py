"""Products of a few rows equal the plain matrix product, whatever the weight is stored as."""

import pytest
import torch

from backends.deepseek_v4.few_rows.products import half_scale, plain_product, product_of

STORED = [(torch.bfloat16, 2.0**-9), (torch.float8_e4m3fn, 1.0), (torch.float32, 1.0)]
SHAPES = [(1, 1), (3, 5), (7, 64), (24, 1024), (200, 33), (640, 256)]


def rounded(shape, dtype, scale):
    return torch.randn(shape).to(dtype).float() * scale


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 6, 7, 8, 13])
@pytest.mark.parametrize(("dtype", "scale"), STORED)
def test_products_equal_the_matrix_product(shape, num_rows, dtype, scale):
    weight, x = rounded(shape, dtype, scale), torch.randn(num_rows, shape[1])
    expected = (x.double() @ weight.double().t()).float()
    tolerance = 1e-6 * expected.abs().max().item() * shape[1] ** 0.5
    for run in (product_of([weight]), product_of([weight], half=False), plain_product(weight)):
        torch.testing.assert_close(run(x), expected, atol=tolerance, rtol=1e-5)


def test_several_weights_lie_side_by_side():
    first, second, x = torch.randn(4, 6), torch.randn(3, 6), torch.randn(2, 6)
    torch.testing.assert_close(product_of([first, second])(x), torch.cat([x @ first.t(), x @ second.t()], dim=1))


def test_rows_may_be_a_strided_view():
    weight, x = rounded((5, 8), torch.bfloat16, 1.0), torch.randn(3, 20)[:, 4:12]
    torch.testing.assert_close(product_of([weight])(x), x @ weight.t())


def test_only_weights_that_half_precision_holds_exactly_are_scaled():
    assert half_scale(torch.tensor([[1.0, -0.5], [448.0, 0.0]])) == 1.0
    assert half_scale(torch.zeros(2, 2)) == 1.0
    tiny = rounded((64, 64), torch.bfloat16, 1.0) * 2.0**-20
    scale = half_scale(tiny)
    assert torch.equal((tiny * scale).half().float() / scale, tiny)
    assert half_scale(torch.randn(8, 8)) is None
    assert half_scale(torch.tensor([[float("nan"), 1.0]])) is None
    assert half_scale(torch.tensor([[1e30, 1e-30]])) is None


def test_a_product_keeps_its_own_copy_of_the_weight():
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    run = product_of([weight])
    before = run(x)
    weight.zero_()
    assert run(x).equal(before)
