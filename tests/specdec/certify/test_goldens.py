"""Acceptance goldens as fractions, and exactness of every rule over gamma + 1 tokens."""

from fractions import Fraction

import pytest

from specdec.certify.chain import ROOT, ChainGame
from specdec.certify.drafts import TableDrafts
from specdec.certify.tables import IID, TWO, table
from specdec.certify.tree import KINDS, TreeGame, given
from specdec.rules.chain import BlockRule, ChainRule, TokenRatioRule
from specdec.rules.siblings import Deterministic

RATIO, BLOCK = TokenRatioRule(), BlockRule()
CHAINS = [
    (TWO, RATIO, True, "2/3 10/9 38/27 130/81"),
    (TWO, BLOCK, True, "2/3 11/9 5/3 166/81"),
    (TWO, RATIO, False, "4/9 52/81 532/729 5044/6561"),
    (IID, RATIO, True, "2/3 10/9 38/27"),
    (IID, BLOCK, True, "2/3 7/6 151/96"),
    (IID, RATIO, False, "7/24 217/576 5551/13824"),
]


@pytest.mark.parametrize(("pair", "rule", "reports", "golden"), CHAINS)
def test_chain_accepts_as_the_golden_and_is_exact(pair, rule: ChainRule, reports: bool, golden: str) -> None:
    """A draft that reports nothing is judged as a point mass, and kept as often as a match of two draws."""
    for width, wanted in enumerate(golden.split(), start=1):
        source = TableDrafts(drawn=pair.draft, reported=pair.draft if reports else None, most=width)
        game = ChainGame(target=pair.target, source=source, rule=rule, num_tokens=width + 1)
        assert game.expected_accepted() == Fraction(wanted)
        assert game.finding("", "").exact


@pytest.mark.parametrize(
    ("kind", "golden"),
    [
        ("siblings with replacement", "2/3 5/6 7/8"),
        ("siblings without replacement", "2/3 11/12 1"),
    ],
)
def test_siblings_accept_as_the_golden_and_are_exact(kind: str, golden: str) -> None:
    draw, rule = KINDS[kind]
    for count, wanted in enumerate(golden.split(), start=1):
        game = TreeGame(target=IID.target, draft=IID.draft, parents=(-1,) * count, draw=draw, rule=rule)
        assert game.expected_accepted() == Fraction(wanted)
        assert game.finding("", "").exact


def test_deterministic_siblings_accept_as_the_golden_and_are_exact() -> None:
    game = TreeGame(target=IID.target, draft=IID.draft, parents=(-1, -1), draw=given(2, 0), rule=Deterministic())
    assert game.expected_accepted() == Fraction(2, 3)
    assert game.finding("", "").exact


@pytest.mark.parametrize(("alpha", "golden"), [("2/3", "5/3 19/9 65/27 211/81"), ("9/10", "1.9 2.71 3.439 4.0951")])
def test_constant_acceptance_gives_the_geometric_length(alpha: str, golden: str) -> None:
    draft = table("1 0")
    target = table(f"{alpha} {1 - Fraction(alpha)}")
    for width, wanted in enumerate(golden.split(), start=1):
        source = TableDrafts(drawn=draft, reported=draft, most=width)
        game = ChainGame(target=target, source=source, rule=RATIO, num_tokens=width + 1)
        assert game.expected_accepted() + 1 == Fraction(wanted)


def test_the_joint_law_is_the_targets_own() -> None:
    source = TableDrafts(drawn=IID.draft, reported=IID.draft, most=2)
    joint, num_cases = ChainGame(target=IID.target, source=source, rule=BLOCK, num_tokens=3).joint()
    law = IID.target.law(ROOT)
    assert num_cases > 27
    assert joint == {(a, b, c): law[a] * law[b] * law[c] for a in range(3) for b in range(3) for c in range(3)}
