"""The attention core of segments against the reference core."""

import pytest
import torch

from backends.deepseek_v4.attention import attend as reference_attend
from backends.deepseek_v4.segments import attend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups, width, heads, keys", [(1, 1, 4, 7), (3, 1, 2, 16), (2, 5, 4, 33)])
def test_attend_equals_the_reference(dtype, groups, width, heads, keys):
    q = torch.randn(groups, width, heads, 16).to(dtype)
    rows = torch.randn(groups, keys, 16).to(dtype)
    valid = torch.rand(groups, width, keys) < 0.6
    sinks = torch.randn(heads)
    expected = reference_attend(q, rows, valid, sinks, 0.3)
    bias = torch.zeros(groups, width, heads, keys).masked_fill(~valid.unsqueeze(2), float("-inf"))
    got = attend(q.flatten(1, 2), rows, bias.flatten(1, 2), sinks.repeat(width), 0.3).view_as(expected)
    torch.testing.assert_close(got, expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2)


def test_a_query_that_sees_nothing_gives_zeros():
    bias = torch.full((1, 2, 5), float("-inf"))
    out = attend(torch.randn(1, 2, 8), torch.randn(1, 5, 8), bias, torch.tensor([0.0, -20.0]), 1.0)
    assert out.equal(torch.zeros(1, 2, 8))
