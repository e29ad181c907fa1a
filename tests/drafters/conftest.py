"""A DraftInput made from host lists, for tests that call a drafter directly."""

from collections.abc import Sequence

import pytest
import torch

from specdec.api import Draft, DraftInput, RoundLayout


class ArgmaxView:
    """A sampling view that takes the argmax and keeps the positions that it was asked for."""

    def __init__(self) -> None:
        self.positions: list[list[int]] = []

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        self.positions.append(positions_B.tolist())
        return Draft(tokens_B=logits_BV.argmax(dim=1))


def make_input(
    histories: Sequence[Sequence[int]],
    *,
    limits: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    sampling: ArgmaxView | None = None,
) -> DraftInput:
    """Decode rows of one token each; ``limits`` of 0 mean that the request wants nothing."""
    num_reqs = len(histories)
    limits = tuple(limits) if limits is not None else (31,) * num_reqs
    lengths = [len(history) for history in histories]
    return DraftInput(
        layout=RoundLayout(
            rows=tuple(rows if rows is not None else range(num_reqs)),
            start_positions=tuple(max(0, n - 2) for n in lengths),
            query_lens=(1,) * num_reqs,
        ),
        next_tokens_T=torch.tensor([history[-1] for history in histories]),
        hidden_TD=None,
        num_committed_B=torch.ones(num_reqs, dtype=torch.int64),
        last_tokens_B=torch.tensor([history[-1] for history in histories]),
        seq_lens_B=torch.tensor(lengths) - 1,
        wanted_B=tuple(limit > 0 for limit in limits),
        max_draft_B=limits,
        limits_B=torch.tensor(limits),
        sampling=sampling or ArgmaxView(),
        histories=histories,
        tables={},
    )


@pytest.fixture(name="make_input")
def _make_input():
    return make_input


@pytest.fixture
def argmax_view() -> ArgmaxView:
    return ArgmaxView()
