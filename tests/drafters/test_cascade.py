"""Cascade: the first proposal wins per request, and whoever follows the passes sees them all."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from drafters.adaptive import AdaptiveConfig
from drafters.cascade import CascadeConfig
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.oracle import OracleConfig
from specdec.api import LAST_LAYER, DrafterNeeds, DraftInput, DraftSetup, Proposal, SiblingDraws
from specdec.certify import certify
from specdec.certify.tables import BIGRAM
from specdec.errors import ConfigError
from specdec.sibling_verifier import SiblingVerifier
from specdec.testing import check_drafter
from specdec.verifiers import RejectionVerifier

VOCABULARY = 8
SETUP = DraftSetup(device=torch.device("cpu"), vocab_size=VOCABULARY, max_batch=4, max_context=64)
Given = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class GivenConfig:
    """Proposes what it is given, cut to the limits, as configuration and as live drafter."""

    drafts: Given
    num_draft_tokens: int = 4
    needs: DrafterNeeds = DrafterNeeds()
    with_laws: bool = False
    parents: list[int] | None = None
    seen: list[DraftInput] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def build(self, setup: DraftSetup) -> "GivenConfig":
        return self

    def propose(self, inputs: DraftInput) -> Proposal | None:
        self.seen.append(inputs)
        width = max(map(len, self.drafts), default=0)
        if width == 0:
            return None
        tokens_BK = torch.tensor([draft + [0] * (width - len(draft)) for draft in self.drafts])
        lengths_B = torch.tensor([len(draft) for draft in self.drafts])
        probs_BKV = torch.full((len(self.drafts), width, VOCABULARY), 1 / VOCABULARY) if self.with_laws else None
        parents_BK = None if self.parents is None else torch.tensor([self.parents] * len(self.drafts))
        return Proposal(
            tokens_BK=tokens_BK,
            num_drafted_B=torch.minimum(lengths_B, inputs.limits_B),
            probs_BKV=probs_BKV,
            parents_BK=parents_BK,
        )

    def forget(self, rows) -> None:
        self.forgotten.extend(rows)


def cascade(*members, **options):
    names = "abcdef"
    return CascadeConfig(drafters=dict(zip(names, members, strict=False)), num_draft_tokens=4, **options).build(SETUP)


def drafted(proposal: Proposal) -> Given:
    lines = zip(proposal.tokens_BK.tolist(), proposal.num_drafted_B.tolist(), strict=True)
    return [tokens[:count] for tokens, count in lines]


def test_each_request_takes_the_first_proposal_that_there_is(make_input) -> None:
    first, second = GivenConfig(drafts=[[1, 2], [], []]), GivenConfig(drafts=[[3], [4, 5, 6], []])
    proposal = cascade(first, second).propose(make_input([[1], [1], [1]]))
    assert drafted(proposal) == [[1, 2], [4, 5, 6], []]
    assert proposal.probs_BKV is None and proposal.parents_BK is None
    assert second.seen[0].max_draft_B == (0, 4, 4)
    assert second.seen[0].limits_B.tolist() == [0, 4, 4]


def test_nobody_is_asked_when_all_have_a_draft_but_one_that_follows_every_pass(make_input) -> None:
    first, second = GivenConfig(drafts=[[1], [2]]), GivenConfig(drafts=[[3], [3]])
    model = GivenConfig(drafts=[[3], [3]], needs=DrafterNeeds(draft_backend=True))
    assert drafted(cascade(first, second, model).propose(make_input([[1], [1]]))) == [[1], [2]]
    assert second.seen == []
    assert model.seen[0].max_draft_B == (0, 0)
    assert cascade(first, second, model).propose(make_input([[1], [1]], limits=[0, 0])) is None
    assert len(model.seen) == 2 and second.seen == []


def test_order_is_that_of_the_names(make_input) -> None:
    members = {"b": GivenConfig(drafts=[[1]]), "a": GivenConfig(drafts=[[2]])}
    assert drafted(CascadeConfig(drafters=members).build(SETUP).propose(make_input([[1]]))) == [[2]]


def test_laws_of_one_stand_beside_point_masses_of_another(make_input) -> None:
    lookup, model = GivenConfig(drafts=[[1, 2], []]), GivenConfig(drafts=[[3], [4]], with_laws=True)
    proposal = cascade(lookup, model).propose(make_input([[1], [1]]))
    one_hot = torch.eye(VOCABULARY)
    assert proposal.probs_BKV[0].equal(one_hot[[1, 2]])
    assert proposal.probs_BKV[1, 0].equal(torch.full((VOCABULARY,), 1 / VOCABULARY))


def test_trees_of_one_stand_beside_chains_of_another(make_input) -> None:
    tree, chain = GivenConfig(drafts=[[1, 2], []], parents=[-1, -1]), GivenConfig(drafts=[[3, 3, 3], [4, 5, 6]])
    proposal = cascade(tree, chain).propose(make_input([[1], [1]]))
    assert proposal.parents_BK.tolist() == [[-1, -1, 1], [-1, 0, 1]]


def test_each_drafter_is_given_the_layers_that_it_named(make_input) -> None:
    one = GivenConfig(drafts=[[]], needs=DrafterNeeds(hidden_layers=(3, LAST_LAYER)))
    two = GivenConfig(drafts=[[]], needs=DrafterNeeds(hidden_layers=(5, 3)))
    none = GivenConfig(drafts=[[]])
    drafter = cascade(one, two, none)
    assert drafter.needs.hidden_layers == (3, LAST_LAYER, 5)
    inputs = make_input([[1, 2]])
    hidden_TD = torch.tensor([[30.0, 31.0, 10.0, 11.0, 50.0, 51.0]])
    drafter.propose(replace(inputs, hidden_TD=hidden_TD))
    assert one.seen[0].hidden_TD.tolist() == [[30.0, 31.0, 10.0, 11.0]]
    assert two.seen[0].hidden_TD.tolist() == [[50.0, 51.0, 30.0, 31.0]]
    assert none.seen[0].hidden_TD is None


def test_all_are_told_to_forget() -> None:
    members = [GivenConfig(drafts=[]), GivenConfig(drafts=[])]
    cascade(*members).forget([2, 3])
    assert [member.forgotten for member in members] == [[2, 3], [2, 3]]


def test_cascade_passes_the_check_for_plug_ins() -> None:
    inner = AdaptiveConfig(wrapped=NextnConfig(), policy="average")
    tally = check_drafter(CascadeConfig(drafters={"lookup": NgramConfig(min_ngram=2), "model": inner}))
    assert tally.num_preemptions > 0
    assert 0 < tally.num_accepted < tally.num_drafted


def test_cascade_is_exact() -> None:
    config = CascadeConfig(drafters={"lookup": NgramConfig(min_ngram=2), "model": NextnConfig()})
    certificate = certify(RejectionVerifier(), config, num_tokens=4, pairs=(BIGRAM,))
    assert certificate.exact, str(certificate)


def test_cascade_of_trees_and_sampled_chains_is_exact() -> None:
    lookup = NgramConfig(min_ngram=2, branches=2, num_draft_tokens=3)
    config = CascadeConfig(drafters={"lookup": lookup, "model": NextnConfig(num_draft_tokens=2)})
    assert config.needs.trees
    certificate = certify(SiblingVerifier(), config, num_tokens=3, pairs=(BIGRAM,))
    assert certificate.exact, str(certificate)
    assert check_drafter(config).num_accepted > 0


def test_trees_beside_laws_say_how_siblings_were_drawn(make_input) -> None:
    tree, model = GivenConfig(drafts=[[1, 2], []], parents=[-1, -1]), GivenConfig(drafts=[[3], [4]], with_laws=True)
    proposal = cascade(tree, model).propose(make_input([[1], [1]]))
    assert proposal.sibling_draws is SiblingDraws.WITHOUT_REPLACEMENT
    assert proposal.probs_BKV[0].equal(torch.eye(VOCABULARY)[[1, 2]])


@pytest.mark.parametrize(
    ("drafters", "message"),
    [
        ({"a": NgramConfig()}, "a mapping of at least two names"),
        ((NgramConfig(), NextnConfig()), "a mapping of at least two names"),
        ({"a": NgramConfig(), "b": 3}, "drafters.b must be the configuration of a drafter, got 3"),
        ({"a": NextnConfig(), "b": OracleConfig(), "c": NextnConfig()}, "may run a draft model, got a and c"),
    ],
)
def test_cascade_config_refuses_by_name(drafters, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CascadeConfig(drafters=drafters)
