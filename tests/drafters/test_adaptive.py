"""Adaptive lengths: the record, the limits, the confidence threshold, and exactness under every rule."""

from dataclasses import dataclass, replace

import pytest
import torch

from drafters.adaptive import POLICIES, AdaptiveConfig
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.oracle import OracleConfig
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal, RoundLayout
from specdec.certify import certify
from specdec.certify.tables import BIGRAM
from specdec.errors import ConfigError, UnsupportedError
from specdec.rule_verifiers import BlockVerifier
from specdec.testing import check_drafter
from specdec.verifiers import RejectionVerifier

SETUP = DraftSetup(device=torch.device("cpu"), vocab_size=8, max_batch=4, max_context=64)


@dataclass(frozen=True, kw_only=True)
class CountingConfig:
    """Proposes 1, 2, 3, ... up to its limits, and keeps them and the rows that it was told to forget."""

    num_draft_tokens: int = 6
    needs: DrafterNeeds = DrafterNeeds()

    def build(self, setup: DraftSetup) -> "Counting":
        return Counting()


class Counting:
    num_draft_tokens = 6
    needs = DrafterNeeds()

    def __init__(self) -> None:
        self.limits: list[list[int]] = []
        self.forgotten: list[int] = []

    def propose(self, inputs: DraftInput) -> Proposal | None:
        assert inputs.limits_B.tolist() == list(inputs.max_draft_B)
        assert inputs.wanted_B == tuple(limit > 0 for limit in inputs.max_draft_B)
        self.limits.append(inputs.limits_B.tolist())
        width = max(inputs.max_draft_B)
        if width == 0:
            return None
        tokens_BK = torch.arange(1, width + 1).repeat(len(inputs.max_draft_B), 1)
        return Proposal(tokens_BK=tokens_BK, num_drafted_B=inputs.limits_B)

    def forget(self, rows) -> None:
        self.forgotten += rows


def after(inputs: DraftInput, *, starts, lengths, committed) -> DraftInput:
    """The pass that verified the last draft: decode rows that began at ``starts``."""
    layout = RoundLayout(rows=inputs.layout.rows, start_positions=tuple(starts), query_lens=tuple(lengths))
    ends = torch.tensor(starts) + torch.tensor(committed)
    return replace(inputs, layout=layout, num_committed_B=torch.tensor(committed), seq_lens_B=ends)


def made(**options):
    wrapped = CountingConfig()
    drafter = AdaptiveConfig(wrapped=wrapped, num_draft_tokens=6, policy="average", **options).build(SETUP)
    return drafter


def test_length_follows_the_record_of_each_request_alone(make_input) -> None:
    drafter = made()
    inputs = make_input([[1] * 9, [1] * 5])
    assert drafter.propose(inputs).num_drafted_B.tolist() == [6, 6]
    # Nothing of the first request's draft was accepted, everything of the second's.
    inputs = after(inputs, starts=[8, 4], lengths=[7, 7], committed=[1, 7])
    assert drafter.propose(inputs).num_drafted_B.tolist() == [1, 6]
    inputs = after(inputs, starts=[9, 11], lengths=[2, 7], committed=[2, 3])
    # Averages of (0, 1) and of (6, 2) accepted tokens.
    assert drafter.propose(inputs).num_drafted_B.tolist() == [1, 5]


def test_record_goes_with_the_row(make_input) -> None:
    drafter = made()
    inputs = make_input([[1] * 9])
    drafter.propose(inputs)
    drafter.propose(after(inputs, starts=[8], lengths=[7], committed=[1]))
    drafter.forget([0])
    assert drafter.propose(inputs).num_drafted_B.tolist() == [6]


def test_what_others_drafted_is_not_entered(make_input) -> None:
    drafter = made()
    inputs = make_input([[1] * 9])
    drafter.propose(inputs)
    elsewhere = after(inputs, starts=[20], lengths=[7], committed=[1])
    assert drafter.propose(elsewhere).num_drafted_B.tolist() == [6]


def test_prompt_chunks_are_no_rounds(make_input) -> None:
    drafter = made(min_draft_tokens=0)
    chunk = make_input([[1] * 3], limits=[0])
    assert drafter.propose(chunk) is None
    following = after(make_input([[1] * 3]), starts=[2], lengths=[1], committed=[1])
    assert drafter.propose(following).num_drafted_B.tolist() == [6]


def test_limits_of_a_request_are_kept(make_input) -> None:
    proposal = made().propose(make_input([[1] * 9] * 3, limits=[0, 2, 31]))
    assert proposal.num_drafted_B.tolist() == [0, 2, 6]


def test_adaptive_lengths_waste_less_than_fixed_ones_and_keep_to_the_contract() -> None:
    wrapped = NextnConfig(num_draft_tokens=5)
    fixed, *adapted = [
        check_drafter(AdaptiveConfig(wrapped=wrapped, policy=policy, num_draft_tokens=5))
        for policy in ("fixed", "ucb", "confidence")
    ]
    for tally in adapted:
        assert tally.num_preemptions > 0
        assert tally.num_accepted / tally.num_drafted > 1.2 * fixed.num_accepted / fixed.num_drafted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=lambda verifier: verifier.name)
def test_every_policy_is_exact(policy: str, verifier) -> None:
    config = AdaptiveConfig(wrapped=NextnConfig(), policy=policy, min_draft_tokens=0, token_cost=0.5)
    certificate = certify(verifier, config, num_tokens=4, pairs=(BIGRAM,))
    assert certificate.exact, str(certificate)


@dataclass(frozen=True, kw_only=True)
class PeekingConfig(AdaptiveConfig):
    """The confidence threshold as it must not be: on the probability of the token that was drawn."""

    def build(self, setup: DraftSetup) -> "Peeking":
        return Peeking(self.wrapped.build(setup), self.threshold)


class Peeking:
    def __init__(self, wrapped, threshold: float) -> None:
        self.num_draft_tokens, self.needs = wrapped.num_draft_tokens, wrapped.needs
        self._wrapped, self._threshold = wrapped, threshold

    def propose(self, inputs: DraftInput) -> Proposal | None:
        proposal = self._wrapped.propose(inputs)
        if proposal is None:
            return None
        drawn_BK = proposal.probs_BKV.gather(2, proposal.tokens_BK[..., None])[..., 0]
        sure_B = (drawn_BK >= self._threshold).long().cumprod(dim=1).sum(dim=1)
        return replace(proposal, num_drafted_B=torch.minimum(proposal.num_drafted_B, sure_B))

    def forget(self, rows) -> None:
        self._wrapped.forget(rows)


def test_threshold_on_the_drawn_token_is_found_to_be_wrong() -> None:
    certificate = certify(RejectionVerifier(), PeekingConfig(wrapped=NextnConfig()), num_tokens=3)
    assert not certificate.exact
    assert certificate.counterexample.counterexample.prefix == ()


class FlatteningBackend:
    """Every draft step is less sure than the one before."""

    cache_groups = ()

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        self.sharpness = 4.0
        return self.logits(inputs.layout.num_reqs)

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        pass

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        self.sharpness -= 1.0
        return self.logits(len(tokens_B))

    def logits(self, num_reqs: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full((num_reqs,), 5), 8) * self.sharpness


@pytest.mark.parametrize(("threshold", "count"), [(0.0, 4), (0.5, 3), (0.75, 1), (0.99, 0)])
def test_confidence_stops_before_the_first_flat_law(threshold: float, count: int, make_input) -> None:
    # Largest probabilities: 0.886, 0.742, 0.513, 0.280; the view of the test reports no laws.
    config = AdaptiveConfig(
        wrapped=NextnConfig(num_draft_tokens=4), num_draft_tokens=4, policy="confidence", threshold=threshold
    )
    drafter = config.build(replace(SETUP, draft_backend=FlatteningBackend()))
    assert drafter.propose(make_input([[1, 2, 3]])).num_drafted_B.tolist() == [count]


def test_confidence_without_probabilities_is_refused_by_name(make_input) -> None:
    drafter = AdaptiveConfig(wrapped=NgramConfig(), policy="confidence").build(SETUP)
    with pytest.raises(UnsupportedError, match="needs a drafter that draws from probabilities"):
        drafter.propose(make_input([[1, 2, 3, 1, 2]]))


def test_needs_are_those_of_the_wrapped_drafter_on_the_host() -> None:
    needs = AdaptiveConfig(wrapped=NextnConfig()).needs
    assert needs == replace(NextnConfig().needs, history=True, recordable=False)
    assert AdaptiveConfig(wrapped=OracleConfig()).needs == DrafterNeeds(history=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy must be one of fixed, average, ucb, confidence, got 'best'"),
        ({"num_draft_tokens": 4}, "at most that of the wrapped drafter, 3, got 4"),
        ({"min_draft_tokens": 4}, "drafter.min_draft_tokens"),
        ({"window": 0}, "drafter.window"),
        ({"threshold": 1.5}, "drafter.threshold"),
        ({"token_cost": -1}, "drafter.token_cost"),
        ({"wrapped": NgramConfig(branches=2)}, "lengths of chains, and NgramConfig proposes trees"),
        ({"wrapped": 3}, "wrapped must be the configuration of a drafter, got 3"),
    ],
)
def test_adaptive_config_refuses_by_name(options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptiveConfig(**{"wrapped": NextnConfig(), **options})
