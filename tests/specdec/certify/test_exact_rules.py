"""No exact rule is faulted: chains, blocks, adaptive lengths, siblings, trees in any node order; and the ties."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.certify.certificate import average_of_past, shorter_after_rejection
from specdec.certify.chain import ChainGame, exact_array
from specdec.certify.drafts import TableDrafts
from specdec.certify.judges import UntiedError, judge_by_coupling, tie_to_rule
from specdec.certify.tables import BIGRAM, PAIRS, Pair, Table
from specdec.certify.tree import KINDS, TreeGame
from specdec.certify.wrong_rules import CommitsTheMismatch, CountsLaterMatches, DrawFromTarget
from specdec.rule_verifiers import BlockVerifierConfig, ThresholdVerifierConfig, TypicalVerifierConfig
from specdec.rules.chain import BlockRule, ChainRule, TokenRatioRule
from specdec.rules.siblings import judge_siblings
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

CHAIN_RULES = (TokenRatioRule(), BlockRule())
VERIFIERS = (
    RejectionVerifier(),
    BlockVerifierConfig().build(),
    TypicalVerifierConfig().build(),
    ThresholdVerifierConfig().build(),
)


def law(weights: list[int]) -> tuple[Fraction, ...]:
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


LAWS = st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any).map(law)
TABLES = st.lists(LAWS, min_size=3, max_size=3).map(tuple).map(Table)


@pytest.mark.parametrize("rule", CHAIN_RULES)
@settings(deadline=None, max_examples=8)
@given(target=TABLES, draft=TABLES, most=st.integers(1, 2))
def test_exact_rule_is_exact_for_any_tables(rule: ChainRule, target: Table, draft: Table, most: int) -> None:
    source = TableDrafts(drawn=draft, reported=draft, most=most)
    finding = ChainGame(target=target, source=source, rule=rule, num_tokens=3).finding("", "")
    assert finding.exact, str(finding)


@settings(deadline=None, max_examples=8)
@given(target=TABLES, draft=TABLES)
def test_block_verification_accepts_at_least_as_many_tokens(target: Table, draft: Table) -> None:
    source = TableDrafts(drawn=draft, reported=draft, most=2)
    token, block = (ChainGame(target=target, source=source, rule=rule, num_tokens=3) for rule in CHAIN_RULES)
    assert block.expected_accepted() >= token.expected_accepted()


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_lengths_that_depend_on_the_past_only_stay_exact(rule: ChainRule, pair: Pair) -> None:
    fixed = TableDrafts(drawn=pair.draft, reported=pair.draft, most=3)
    sources = [replace(fixed, policy=policy) for policy in (shorter_after_rejection, average_of_past)]
    for source in [*sources, replace(fixed, confidence=Fraction(2, 5))]:
        finding = ChainGame(target=pair.target, source=source, rule=rule).finding("", "")
        assert finding.exact, str(finding)


def test_token_ratio_survives_noise_keyed_by_position_and_block_verification_does_not() -> None:
    pair = PAIRS[0]
    source = TableDrafts(drawn=pair.draft, reported=pair.draft, most=2, repeats_noise=True)
    found = [ChainGame(target=pair.target, source=source, rule=rule).finding("", "").exact for rule in CHAIN_RULES]
    assert found == [True, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parents", [(-1, 0), (1, -1), (-1, -1, 1), (2, -1, -1)])
def test_trees_are_exact_in_any_node_order(kind: str, parents: tuple[int, ...]) -> None:
    draw, rule = KINDS[kind]
    game = TreeGame(target=BIGRAM.target, draft=BIGRAM.draft, parents=parents, draw=draw, rule=rule)
    assert game.finding("", "").exact


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=5)
@given(target=TABLES, draft=TABLES)
def test_sibling_rules_are_exact_for_any_tables(kind: str, target: Table, draft: Table) -> None:
    draw, rule = KINDS[kind]
    finding = TreeGame(target=target, draft=draft, parents=(-1, -1), draw=draw, rule=rule).finding("", "")
    assert finding.exact, str(finding)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sibling_rules_give_tensors_what_they_give_fractions(kind: str, count: int) -> None:
    rule, distinct = KINDS[kind][1], kind != "siblings with replacement"
    cases = [
        siblings
        for siblings in itertools.product(range(3), repeat=count)
        if not distinct or len(set(siblings)) == count
    ]
    for pair in PAIRS:
        for row, draft in zip(pair.target.rows, itertools.cycle(pair.draft.rows)):
            usable = [case for case in cases if all(draft[token] for token in case)]
            if not usable:
                continue
            siblings = np.array(usable)
            laws = [exact_array([row] * len(usable)), exact_array([[draft] * count] * len(usable))]
            exact = judge_siblings(rule, *laws, siblings)
            tensors = [torch.from_numpy(law_CV.astype(np.float64)) for law_CV in laws]
            found = judge_siblings(rule, *tensors, torch.from_numpy(siblings))
            for ours, theirs in zip(found, exact, strict=True):
                torch.testing.assert_close(ours, torch.from_numpy(theirs.astype(np.float64)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_verifier_does_what_its_rule_says(verifier) -> None:
    assert tie_to_rule(verifier, PAIRS) > 200
    assert judge_by_coupling(verifier, all_greedy=True).exact


@pytest.mark.parametrize("verifier", [GreedyVerifier(), GumbelVerifier()], ids=lambda verifier: verifier.name)
def test_matching_verifiers_commit_the_targets_own_choice(verifier) -> None:
    assert judge_by_coupling(verifier).exact


@pytest.mark.parametrize("verifier", [CountsLaterMatches(), CommitsTheMismatch()])
def test_coupling_shows_the_choice_and_what_was_committed_instead(verifier) -> None:
    example = judge_by_coupling(verifier).counterexample
    assert example.distance == 1
    assert sorted(example.wanted) == sorted(example.found) == [0, 0, 1]


def test_a_judge_that_leaves_its_rule_is_found() -> None:
    class Untied(RejectionVerifier):
        def judge(self, logits_BNV, proposal, sampling, positions_B):
            self.rule = DrawFromTarget()
            verdict = super().judge(logits_BNV, proposal, sampling, positions_B)
            self.rule = TokenRatioRule()
            return verdict

    with pytest.raises(UntiedError, match="the last token is drawn from another law"):
        tie_to_rule(Untied(), PAIRS)
