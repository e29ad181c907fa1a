"""Attention over growing lengths never plans a length anew, in every model that attends so; flags need no GPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from backends.eagle3.model import masked_attention
from backends.growing_lengths import growing_lengths


def test_implementations_that_plan_are_left_out_and_come_back() -> None:
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with growing_lengths():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether an implementation that plans was allowed, for every call of torch's attention."""
    calls: list[bool] = []
    attend: Callable[..., torch.Tensor] = F.scaled_dot_product_attention

    def watched(*tensors: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
        calls.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*tensors, attn_mask=attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return calls


def test_drafting_with_an_eagle3_head_plans_no_length(planning: list[bool]) -> None:
    query, keys, values = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    seen = torch.ones(2, 3, 5, dtype=torch.bool)
    assert masked_attention(query, keys, values, seen).shape == query.shape
    assert planning == [False]
