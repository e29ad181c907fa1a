"""A tiny random EAGLE-3 head, and inputs of rounds made from host lists."""

from collections.abc import Callable, Sequence

import pytest
import torch

from backends.eagle3.config import Eagle3Config
from backends.eagle3.model import Eagle3Model
from backends.eagle3.weights import TargetPart, borrowed
from specdec.api import Draft, DraftInput, RoundLayout

VOCABULARY, WIDTH, NUM_LAYERS = 23, 16, 5


class NoDraw:
    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        raise AssertionError("these tests draw nothing")


def make_head(*, seed: int = 0, streams: int = 1, target_width: int | None = None, **changes: object) -> Eagle3Model:
    settings = {
        "vocab_size": VOCABULARY,
        "draft_vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "target_hidden_size": target_width or WIDTH * streams,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "hidden_layers": (0, 2, 4),
        **changes,
    }
    torch.manual_seed(seed)
    model = Eagle3Model(Eagle3Config(**settings), borrowed(torch.randn(VOCABULARY, WIDTH)))
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter.shape[-1] if parameter.dim() > 1 else 1
            parameter.copy_(torch.randn_like(parameter) * fan_in**-0.5 * 2 + (parameter.dim() == 1))
    if model.config.is_reduced:
        model.choose_vocabulary(torch.randperm(VOCABULARY)[: model.config.draft_vocab_size].sort().values)
    return model.eval()


def pass_input(
    layout: RoundLayout, hidden_TD: torch.Tensor | None, next_tokens: Sequence[int], committed: Sequence[int]
) -> DraftInput:
    committed_B, starts_B = torch.tensor(committed), torch.tensor(layout.start_positions)
    next_T = torch.tensor(next_tokens)
    return DraftInput(
        layout=layout,
        next_tokens_T=next_T,
        hidden_TD=hidden_TD,
        num_committed_B=committed_B,
        last_tokens_B=next_T[torch.tensor(layout.query_starts[:-1]) + committed_B - 1],
        seq_lens_B=starts_B + committed_B,
        wanted_B=(True,) * layout.num_reqs,
        max_draft_B=(4,) * layout.num_reqs,
        limits_B=torch.full((layout.num_reqs,), 4),
        sampling=NoDraw(),
        histories=(),
        tables={},
    )


@pytest.fixture
def head() -> Callable[..., Eagle3Model]:
    return make_head


@pytest.fixture
def pass_of() -> Callable[..., DraftInput]:
    return pass_input


@pytest.fixture
def target_part() -> TargetPart:
    generator = torch.Generator().manual_seed(3)
    embedding, head = (torch.randn(VOCABULARY, WIDTH, generator=generator) for _ in range(2))
    return TargetPart(embedding=embedding, head=head, num_layers=NUM_LAYERS)
