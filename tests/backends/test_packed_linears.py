"""Packed linear layers: the products of the plain ones, for any number of rows."""

import pytest
import torch
from torch import nn

from backends.packed_linears import MOST_ROWS, PackedLinear, pack_linears


def packed(model: nn.Module) -> nn.Module:
    pack_linears(model.requires_grad_(False))
    return model


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [(1, 8), (3, 1, 8), (2, 2, 8), (MOST_ROWS + 1, 8), (0, 8)])
def test_products_are_those_of_the_plain_layers(shape: tuple[int, ...], exact: bool) -> None:
    layers = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Sequential(nn.Linear(12, 5, bias=False)))
    if exact:
        layers.to(torch.bfloat16).float()
    x = torch.randn(shape)
    wanted = layers(x)
    assert isinstance(packed(layers)[0], PackedLinear)
    torch.testing.assert_close(layers(x), wanted)


def test_rows_need_not_lie_side_by_side() -> None:
    layer = nn.Sequential(nn.Linear(8, 4))
    x = torch.randn(3, 4, 8)[:, 1]
    wanted = layer(x)
    torch.testing.assert_close(packed(layer)(x), wanted)


def test_other_types_stay_as_they_are() -> None:
    layer = packed(nn.Sequential(nn.Linear(8, 4, dtype=torch.bfloat16)))
    assert isinstance(layer[0], nn.Linear)
