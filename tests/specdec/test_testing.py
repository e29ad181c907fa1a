"""The check for plug-in authors passes a right drafter and names what is wrong with a wrong one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from specdec.api import LAST_LAYER, DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.testing import check_drafter

Propose = Callable[[DraftInput], Proposal | None]


@dataclass(frozen=True, kw_only=True)
class FunctionConfig:
    """A drafter made from a function: what a plug-in looks like."""

    propose: Propose
    num_draft_tokens: int = 2
    needs: DrafterNeeds = DrafterNeeds()

    def build(self, setup: DraftSetup) -> "FunctionDrafter":
        return FunctionDrafter(self)


class FunctionDrafter:
    def __init__(self, config: FunctionConfig) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self.propose = config.propose

    def forget(self, rows: Sequence[int]) -> None:
        pass


def limited(inputs: DraftInput, width: int = 2) -> torch.Tensor:
    return torch.tensor(inputs.max_draft_B).clamp(max=width)


def constant(inputs: DraftInput, token: int = 3) -> Proposal:
    """The same token, as often as each request may have it."""
    tokens_BK = torch.full((inputs.layout.num_reqs, 2), token)
    return Proposal(tokens_BK=tokens_BK, num_drafted_B=limited(inputs))


def test_check_drafter_passes_a_constant_drafter() -> None:
    tally = check_drafter(FunctionConfig(propose=constant))
    assert 0 < tally.num_accepted < tally.num_drafted
    assert tally.num_preemptions > 0


def repeat_newest(inputs: DraftInput) -> Proposal:
    tokens_BK = inputs.last_tokens_B[:, None].expand(-1, 2)
    return Proposal(tokens_BK=tokens_BK, num_drafted_B=limited(inputs))


def test_check_drafter_gives_hidden_states_only_when_they_are_declared() -> None:
    seen = set()

    def look(inputs: DraftInput) -> Proposal:
        seen.add(None if inputs.hidden_TD is None else inputs.hidden_TD.shape[1])
        return repeat_newest(inputs)

    check_drafter(FunctionConfig(propose=look))
    assert seen == {None}
    seen.clear()
    check_drafter(FunctionConfig(propose=look, needs=DrafterNeeds(hidden_layers=(0, LAST_LAYER))))
    assert seen == {4}


def test_check_drafter_shows_the_newest_token_of_every_row() -> None:
    def check(inputs: DraftInput) -> Proposal | None:
        for b, history in enumerate(inputs.histories):
            length = int(inputs.seq_lens_B[b])
            assert int(inputs.last_tokens_B[b]) == history[length]
            assert inputs.layout.start_positions[b] + int(inputs.num_committed_B[b]) == length
            first = inputs.layout.query_starts[b]
            committed = inputs.next_tokens_T[first : first + int(inputs.num_committed_B[b])].tolist()
            assert committed == list(history[inputs.layout.start_positions[b] + 1 : length + 1])
            assert inputs.wanted_B[b] == (inputs.max_draft_B[b] > 0)
        return repeat_newest(inputs)

    check_drafter(FunctionConfig(propose=check, needs=DrafterNeeds(history=True)))


def too_many(inputs: DraftInput) -> Proposal:
    tokens_BK = torch.zeros(inputs.layout.num_reqs, 2, dtype=torch.int64)
    return Proposal(tokens_BK=tokens_BK, num_drafted_B=torch.full((inputs.layout.num_reqs,), 2))


def careless(inputs: DraftInput) -> Proposal:
    """Full of tokens for requests that want none, and of nonsense beyond each request's draft."""
    counts_B = torch.tensor(inputs.max_draft_B)
    unwanted_B = ~torch.tensor(inputs.wanted_B)
    tokens_BK = torch.where(torch.arange(2) < counts_B[:, None], inputs.last_tokens_B[:, None], 10**6)
    tokens_BK[unwanted_B] = 3
    return Proposal(tokens_BK=tokens_BK, num_drafted_B=torch.where(unwanted_B, 2, counts_B))


def test_check_drafter_allows_anything_beyond_what_was_wanted() -> None:
    assert check_drafter(FunctionConfig(propose=careless)).num_accepted > 0


def impossible_law(inputs: DraftInput) -> Proposal:
    probs_BKV = torch.zeros(inputs.layout.num_reqs, 2, 13)
    probs_BKV[..., 4] = 1.0
    proposal = constant(inputs)
    return Proposal(tokens_BK=proposal.tokens_BK, num_drafted_B=proposal.num_drafted_B, probs_BKV=probs_BKV)


def meddling(inputs: DraftInput) -> Proposal:
    inputs.seq_lens_B.add_(1)
    return constant(inputs)


@pytest.mark.parametrize(
    ("propose", "message"),
    [
        (too_many, "drafted tokens, at most"),
        (lambda inputs: constant(inputs, token=13), "ids of the vocabulary"),
        (impossible_law, "a token that its law cannot give"),
        (meddling, "propose changed seq_lens_B"),
    ],
)
def test_check_drafter_names_what_is_wrong(propose: Propose, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_drafter(FunctionConfig(propose=propose))
