"""Real drafters under the certificate: exact ones, ones that report what they did not do, and ones it refuses."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch

from drafters.eagle3 import Eagle3Config
from drafters.medusa import MedusaConfig
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from drafters.oracle import OracleConfig
from specdec.api import Coupling, DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.certify import certify
from specdec.certify.certificate import LEAST_TOKENS
from specdec.certify.chain import ROOT
from specdec.certify.tables import BIGRAM, IID
from specdec.errors import UnsupportedError
from specdec.rule_verifiers import BlockVerifier, TypicalVerifierConfig
from specdec.testing import ForcedVerifier
from specdec.verifiers import GumbelVerifier, RejectionVerifier

TEXTS = tuple((ROOT, text) for text in itertools.product(range(3), repeat=4))
DRAFTERS = (
    NextnConfig(),
    NextnConfig(proposals="greedy", num_draft_tokens=2),
    NgramConfig(),
    NgramConfig(match="earliest", min_ngram=2),
    OracleConfig(references=TEXTS, accuracy=(0.5,)),
    NoneConfig(),
)


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: type(drafter).__name__)
def test_drafters_that_ship_are_exact(verifier, drafter) -> None:
    certificate = certify(verifier, drafter, num_tokens=4, pairs=(BIGRAM,))
    assert certificate.exact, str(certificate)
    assert str(certificate).splitlines()[-1].startswith("exact: ")
    assert ("stood in for the draft model" in str(certificate)) == drafter.needs.draft_backend


@pytest.mark.parametrize("drafter", [Eagle3Config(), MedusaConfig()], ids=["eagle3", "medusa"])
def test_heads_over_states_are_judged_through_a_stand_in(drafter) -> None:
    certificate = certify(RejectionVerifier(), drafter, num_tokens=LEAST_TOKENS, pairs=(BIGRAM,))
    assert certificate.exact, str(certificate)
    assert "a table stood in for the draft model" in str(certificate)


class Custom:
    """A drafter made of one function of the draft model's logits, as configuration and as live object."""

    num_draft_tokens = 1
    needs = DrafterNeeds(draft_backend=True)

    def build(self, setup: DraftSetup) -> "Custom":
        self.backend = setup.draft_backend
        return self

    def propose(self, inputs: DraftInput) -> Proposal | None:
        logits_BV = self.backend.begin_draft(inputs)
        if inputs.max_draft_B[0] == 0:
            return None
        tokens_B, probs_BV = self.choose(inputs, logits_BV)
        return Proposal(
            tokens_BK=tokens_B[:, None],
            num_drafted_B=torch.ones(1, dtype=torch.int64),
            probs_BKV=probs_BV[:, None],
        )

    def forget(self, rows) -> None:
        pass


class GreedyReportedAsSoftmax(Custom):
    def choose(self, inputs, logits_BV):
        return logits_BV.argmax(-1), logits_BV.softmax(-1)


class SharperReport(Custom):
    """Reports an irrational law."""

    def choose(self, inputs, logits_BV):
        return inputs.sampling.draw(logits_BV, inputs.seq_lens_B + 1).tokens_B, (1.5 * logits_BV).softmax(-1)


class HonestReport(Custom):
    def choose(self, inputs, logits_BV):
        draft = inputs.sampling.draw(logits_BV, inputs.seq_lens_B + 1)
        return draft.tokens_B, draft.probs_BV


class OwnGenerator(Custom):
    def choose(self, inputs, logits_BV):
        return torch.multinomial(logits_BV.softmax(-1), 1)[:, 0], logits_BV.softmax(-1)


class Adaptive(HonestReport):
    """Drafts nothing in the round after one in which its token was rejected; keeps that between rounds."""

    def __init__(self) -> None:
        self.drafted = False

    def propose(self, inputs: DraftInput) -> Proposal | None:
        rejected = self.drafted and int(inputs.num_committed_B[0]) == 1
        proposal = None if rejected else super().propose(inputs)
        self.drafted = proposal is not None
        return proposal


class Peeking(HonestReport):
    """Withdraws a token after it has looked at it."""

    def propose(self, inputs: DraftInput) -> Proposal | None:
        proposal = super().propose(inputs)
        return None if proposal is None or proposal.tokens_BK[0, 0] == 2 else proposal


class Unpicklable(HonestReport):
    def __init__(self) -> None:
        self.state = lambda: None


@dataclass
class ReadsHidden(HonestReport):
    needs: DrafterNeeds = field(default_factory=lambda: DrafterNeeds(hidden_layers=(-1,)))


@pytest.mark.parametrize("drafter", [HonestReport(), Adaptive()])
def test_an_honest_drafter_from_elsewhere_is_exact(drafter: Custom) -> None:
    assert certify(RejectionVerifier(), drafter, num_tokens=3, pairs=(IID,)).exact


def test_a_greedy_draft_reported_as_softmax_is_found_with_the_known_output() -> None:
    text = str(certify(RejectionVerifier(), GreedyReportedAsSoftmax(), num_tokens=3, pairs=(IID,)))
    assert text.splitlines()[-1].startswith("not exact: verifier rejection, drafter GreedyReportedAsSoftmax")
    assert "after [] the target's law is (1/2, 1/3, 1/6), the output's is (1/2, 1/6, 1/3), total variation 1/6" in text


def test_an_irrational_report_is_found_and_shown_in_decimals() -> None:
    example = certify(RejectionVerifier(), SharperReport(), num_tokens=3, pairs=(IID,)).counterexample
    assert "0." in str(example)


def test_a_drafter_that_withdraws_what_it_has_seen_is_found() -> None:
    assert not certify(RejectionVerifier(), Peeking(), num_tokens=3, pairs=(IID,)).exact


def test_any_drafter_is_exact_where_the_output_is_the_targets_own_choice() -> None:
    certificate = certify(GumbelVerifier(), OwnGenerator(), num_tokens=3, pairs=(IID,))
    assert certificate.exact and "judged by its coupling" in str(certificate)


def test_a_lossy_rule_is_not_exact() -> None:
    certificate = certify(TypicalVerifierConfig().build(), NextnConfig(), num_tokens=LEAST_TOKENS)
    assert certificate.counterexample.counterexample.prefix == ()


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        (OwnGenerator(), "OwnGenerator draws from a global random generator"),
        (ReadsHidden(), "ReadsHidden reads hidden states of the target"),
        (Unpicklable(), "the state of Unpicklable cannot be copied"),
    ],
)
def test_what_cannot_be_enumerated_is_refused_by_name(drafter: Custom, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        certify(RejectionVerifier(), drafter, num_tokens=3, pairs=(IID,))


def test_a_verifier_without_a_readable_rule_is_refused_by_name() -> None:
    class Unreadable(ForcedVerifier):
        name = "unreadable"
        coupling = Coupling.INDEPENDENT

    with pytest.raises(UnsupportedError, match="verifier unreadable draws by a rule that cannot be read"):
        certify(Unreadable((0,)), NoneConfig())


def test_a_rule_that_accepts_anything_is_found_by_its_coupling() -> None:
    assert not certify(ForcedVerifier((99,)), NoneConfig()).exact
