"""Targets and drafts that follow tables of fractions: their own passes give the laws, and the goldens hold for them."""

from fractions import Fraction

import pytest

from drafters.nextn import NextnConfig
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.certify.chain import ChainGame
from specdec.certify.drafts import TableDrafts
from specdec.certify.tables import BIGRAM, IID, TWO, Pair, Table
from specdec.certify.tree import KINDS, TreeGame
from specdec.engine import Engine, EngineConfig
from specdec.request import Request
from specdec.rules.chain import BlockRule, ChainRule, TokenRatioRule
from specdec.sampling_params import SamplingParams
from specdec.testing import BigramTarget, IidTarget, LawDraft, LawTarget, check_draft_backend, check_target, laws_of
from specdec.verifiers import RejectionVerifier

RATIO, BLOCK = TokenRatioRule(), BlockRule()
GOLDENS = [
    (TWO, RATIO, True, "2/3 10/9 38/27 130/81"),
    (TWO, BLOCK, True, "2/3 11/9 5/3 166/81"),
    (TWO, RATIO, False, "4/9 52/81 532/729 5044/6561"),
    (IID, RATIO, True, "2/3 10/9 38/27"),
    (IID, BLOCK, True, "2/3 7/6 151/96"),
    (IID, RATIO, False, "7/24 217/576 5551/13824"),
]


def target_of(pair: Pair) -> LawTarget:
    rows = pair.target.rows
    return IidTarget(rows[0]) if len(rows) == 1 else BigramTarget(rows)


@pytest.mark.parametrize("pair", [TWO, IID, BIGRAM], ids=lambda pair: pair.name)
def test_passes_of_a_law_target_give_its_laws_as_fractions(pair: Pair) -> None:
    target = target_of(pair)
    found = laws_of(target)
    assert all(found.law((token,)) == pair.target.law((token,)) for token in range(target.vocab_size))


@pytest.mark.parametrize("pair", [IID, BIGRAM], ids=lambda pair: pair.name)
def test_law_target_and_law_draft_keep_to_the_contract(pair: Pair) -> None:
    target = target_of(pair)
    check_target(target)
    check_draft_backend(target, LawDraft(target, pair.draft))
    check_draft_backend(target, LawDraft(target, target.table), exact=True)


def test_bigram_target_reads_the_newest_token_only() -> None:
    laws = tuple(tuple(Fraction(int(i == (token + 1) % 3)) for i in range(3)) for token in range(3))
    engine = Engine(BigramTarget(laws), Plain(), RejectionVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1,), sampling=SamplingParams(max_new_tokens=5)))
    (output,) = engine.run()
    assert list(output.output_ids) == [2, 0, 1, 2, 0]


@pytest.mark.parametrize(("pair", "rule", "reports", "golden"), GOLDENS)
def test_goldens_hold_for_the_laws_of_live_targets(pair: Pair, rule: ChainRule, reports: bool, golden: str) -> None:
    """The first entry of a row is one draft token, the next two, and so on."""
    target, draft = laws_of(target_of(pair)), LawDraft(target_of(pair), pair.draft).table
    for width, wanted in enumerate(golden.split(), start=1):
        source = TableDrafts(drawn=draft, reported=draft if reports else None, most=width)
        game = ChainGame(target=target, source=source, rule=rule, num_tokens=width + 1)
        assert game.expected_accepted() == Fraction(wanted)


@pytest.mark.parametrize(
    ("kind", "golden"), [("siblings with replacement", "2/3 5/6 7/8"), ("siblings without replacement", "2/3 11/12 1")]
)
def test_sibling_goldens_hold_for_the_laws_of_live_targets(kind: str, golden: str) -> None:
    draw, rule = KINDS[kind]
    for count, wanted in enumerate(golden.split(), start=1):
        game = TreeGame(target=laws_of(target_of(IID)), draft=IID.draft, parents=(-1,) * count, draw=draw, rule=rule)
        assert game.expected_accepted() == Fraction(wanted)


class Plain:
    """Drafts nothing."""

    num_draft_tokens = 0
    needs = DrafterNeeds()

    def propose(self, inputs: DraftInput) -> Proposal | None:
        return None

    def forget(self, rows) -> None:
        pass


def test_a_run_measures_the_overlap_of_the_tables() -> None:
    """The sum of min(p, q) is 2/3 at every position: both tables are i.i.d."""
    target = target_of(IID)
    draft = LawDraft(target, IID.draft)
    setup = DraftSetup(
        device=target.device, vocab_size=target.vocab_size, max_batch=1, max_context=96, draft_backend=draft
    )
    drafter = NextnConfig(num_draft_tokens=2).build(setup)
    engine = Engine(target, drafter, RejectionVerifier(), EngineConfig(), draft_groups=draft.cache_groups)
    engine.add(Request(request_id="a", prompt=(1, 2), sampling=SamplingParams(max_new_tokens=20, temperature=1.0)))
    (output,) = engine.run()
    overlaps = [value for step in output.steps for value in step.overlap or ()]
    assert len(overlaps) > 10
    assert overlaps == pytest.approx([2 / 3] * len(overlaps), abs=1e-6)


def test_a_bigram_target_needs_a_law_for_every_token() -> None:
    with pytest.raises(AssertionError, match="one law for every token"):
        BigramTarget(IID.target.rows)
    assert LawTarget(Table(IID.target.rows)).vocab_size == 3
