"""The EAGLE-3 head itself: what it computes does not change with the type of its parameters beyond their rounding."""

import torch

from backends.eagle3.model import Eagle3Model

WIDTH = 16


def query_at(model: Eagle3Model, position: int) -> torch.Tensor:
    """Queries of one token at a position, float32 [H * d]."""
    seen = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.append(query)
        return torch.zeros_like(query)

    states = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1)).to(model.fc.weight.dtype)
    model(states, torch.tensor([3]), torch.tensor([position]), attend)
    return seen[0].flatten().float()


@torch.no_grad()
def test_positions_turn_by_the_same_angles_in_bf16(head) -> None:
    for position in (0, 700, 1999):
        exact, rounded = (query_at(head().to(dtype), position) for dtype in (torch.float32, torch.bfloat16))
        assert float(torch.cosine_similarity(exact, rounded, dim=0)) > 0.999
