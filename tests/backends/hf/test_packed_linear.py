"""Packed products are the products, and only what is small and float32 is packed."""

import pytest
import torch

from backends.hf import packed_linear
from backends.hf.packed_linear import Product, packing_works, worth_packing


@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 11, 40])
@pytest.mark.parametrize("shape", [(96, 64), (33, 17)])
@pytest.mark.parametrize("pack", [False, True])
def test_a_product_is_that_of_the_weight(num_rows, shape, pack):
    if pack and not torch.backends.mkldnn.is_available():
        pytest.skip("weights are packed by oneDNN, and this torch is built without it")
    weight, rows = torch.randn(shape), torch.randn(num_rows, shape[1])
    found = Product(weight, pack=pack)(rows)
    assert found.shape == (num_rows, shape[0])
    torch.testing.assert_close(found, rows @ weight.T, atol=1e-4, rtol=1e-4)


def test_packing_works_wherever_there_is_onednn():
    assert packing_works() == torch.backends.mkldnn.is_available()


def test_only_small_float32_weights_on_a_cpu_are_packed(monkeypatch):
    small = torch.zeros(8, 8)
    assert worth_packing([small, small]) == packing_works()
    assert not worth_packing([small, small.bfloat16()])
    assert not worth_packing([small, small.to("meta")])
    monkeypatch.setattr(packed_linear, "MOST_BYTES", 2 * 8 * 8 * 4 - 1)
    assert not worth_packing([small, small])


def test_without_the_operators_nothing_is_packed(monkeypatch):
    def absent(*arguments):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(packed_linear, "_packed", absent)
    assert not packing_works()
    assert not worth_packing([torch.zeros(8, 8)])
