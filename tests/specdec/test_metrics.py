"""Metrics: the golden of the definitions, censoring, loops, trees, and definitions for every number."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from specdec.loops import mark_loops
from specdec.metrics import (
    DEFINITIONS,
    FORMULAS,
    POSITION_FORMULAS,
    StepRow,
    Steps,
    Terms,
    accepted_histogram,
    loop_token_share,
)
from specdec.rounds.times import RoundTimes

SPEEDS = ("speedup", "speedup_decode", "speedup_cpu", "tokens_per_second", "ms_per_round")
GOLDEN = [(3, 3), (3, 1), (3, 0), (2, 2), (0, 0), (3, 2)]


def row(proposed: int, accepted: int, *, request: str = "a", step: int = 0, **changes) -> StepRow:
    base = StepRow(
        request_id=request,
        round=step,
        step=step,
        seq_len=10 + step,
        proposed=proposed,
        depth=proposed,
        verified=proposed,
        accepted=accepted,
        emitted=accepted + 1,
        bonus=int(accepted == proposed),
    )
    return replace(base, **changes)


def rows_of(pairs: Sequence[tuple[int, int]], **changes) -> list[StepRow]:
    return [row(k, a, step=i, **changes) for i, (k, a) in enumerate(pairs)]


def value(name: str, rows: Sequence[StepRow]) -> float:
    return FORMULAS[name](Steps.of(rows)).value


def by_position(name: str, rows: Sequence[StepRow]) -> list[Terms]:
    steps = Steps.of(rows)
    return [POSITION_FORMULAS[name](steps, i) for i in range(1, steps.max_depth + 1)]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("tokens_per_step", "7/3"),
        ("drafted_step_share", "5/6"),
        ("tokens_per_drafted_step", "13/5"),
        ("draft_acceptance_rate", "4/7"),
        ("accepted_per_drafted_step", "8/5"),
        ("wasted_draft_fraction", "3/7"),
        ("tokens_per_step_request_mean", "7/3"),
        ("loop_fraction", "0"),
    ],
)
def test_golden_of_single_numbers(name: str, want: str) -> None:
    assert abs(value(name, rows_of(GOLDEN)) - float(Fraction(want))) < 1e-12


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("survival", ["4/5", "3/5", "1/4"]),
        ("survival_raw", ["4/5", "3/5", "1/4"]),
        ("survival_fixed", ["4/5", "3/5", "1/5"]),
        ("conditional", ["4/5", "3/4", "1/2"]),
        ("conditional_raw", ["4/5", "3/4", "1/2"]),
    ],
)
def test_golden_by_position(name: str, want: list[str]) -> None:
    terms = by_position(name, rows_of(GOLDEN))
    assert [t.value for t in terms] == pytest.approx([float(Fraction(w)) for w in want], abs=1e-12)


def test_tokens_per_step_follow_from_accepted_drafts_and_the_share_of_steps_that_drafted() -> None:
    rows = rows_of(GOLDEN)
    found = 1 + value("accepted_per_drafted_step", rows) * value("drafted_step_share", rows)
    assert value("tokens_per_step", rows) == pytest.approx(found)


def test_survival_may_rise_with_position_when_lengths_vary() -> None:
    rows = rows_of([(1, 0), (2, 2)])
    assert [t.value for t in by_position("survival", rows)] == [0.5, 1.0]
    assert [t.value for t in by_position("survival_fixed", rows)] == [0.5, 0.5]


def test_constant_acceptance_gives_the_geometric_sum() -> None:
    """AL = sum of alpha^i, with the exact shares of alpha = 2/3 over 27 steps."""
    pairs = [(3, 3)] * 8 + [(3, 2)] * 4 + [(3, 1)] * 6 + [(3, 0)] * 9
    assert abs(value("tokens_per_drafted_step", rows_of(pairs)) - 65 / 27) < 1e-12


def test_a_cut_step_leaves_later_positions_unobserved() -> None:
    cut = row(4, 3, emitted=2, bonus=0, cut="eos")
    rows = [row(4, 4, step=1), cut]
    assert [(t.top.sum(), t.bottom.sum()) for t in by_position("survival", rows)] == [(2, 2), (2, 2), (1, 1), (1, 1)]
    assert [(t.top.sum(), t.bottom.sum()) for t in by_position("survival_raw", rows)] == [
        (2, 2),
        (2, 2),
        (2, 2),
        (1, 2),
    ]
    assert [t.num for t in by_position("conditional", rows)] == [2, 2, 1, 1]
    assert [t.num for t in by_position("conditional_raw", rows)] == [2, 2, 2, 2]
    assert value("tokens_per_step", rows) == 7 / 2
    assert value("accepted_per_drafted_step", rows) == (4 + 2) / 2
    assert value("wasted_draft_fraction", rows) == 1 - 6 / 8
    assert value("draft_acceptance_rate", rows) == 7 / 8


def test_verified_depth_counts_when_a_scheduler_cut_the_draft() -> None:
    rows = [row(4, 2, verified=2)]
    assert Steps.of(rows).max_depth == 2
    assert value("draft_acceptance_rate", rows) == 0.5


def test_plain_decoding_has_one_token_per_step_and_observes_nothing_else() -> None:
    rows = rows_of([(0, 0), (0, 0)])
    assert value("tokens_per_step", rows) == 1
    for name in ("tokens_per_drafted_step", "draft_acceptance_rate", "wasted_draft_fraction", "overlap"):
        assert math.isnan(value(name, rows))
    assert by_position("survival", rows) == []
    assert math.isnan(value("tokens_per_step", []))


def test_trees_report_node_efficiency_instead_of_a_rate() -> None:
    rows = [row(7, 2, depth=3, bonus=0), row(7, 3, depth=3)]
    assert value("node_efficiency", rows) == 5 / 14
    assert math.isnan(value("draft_acceptance_rate", rows))
    assert math.isnan(value("node_efficiency", rows_of(GOLDEN)))


def test_overlap_averages_positions_not_steps() -> None:
    rows = [row(3, 0, overlap=(0.5, 0.7, 0.9)), row(1, 1, overlap=(0.1,)), row(0, 0)]
    assert abs(value("overlap", rows) - 2.2 / 4) < 1e-12


def test_request_mean_weighs_requests_and_turns_equally() -> None:
    rows = [*rows_of([(3, 3)] * 9, request="a"), row(3, 0, request="b"), row(3, 1, request="b", turn=1)]
    assert value("tokens_per_step_request_mean", rows) == (4 + 1 + 2) / 3
    assert value("tokens_per_step", rows) == 39 / 11


def test_histogram_covers_every_step_and_splits_by_proposed() -> None:
    steps = Steps.of(rows_of(GOLDEN))
    assert accepted_histogram(steps).tolist() == [2, 1, 2, 1]
    assert accepted_histogram(steps, proposed=3).tolist() == [1, 1, 1, 1]


def test_every_number_has_its_definition() -> None:
    assert {*FORMULAS, *POSITION_FORMULAS, "loop_token_share", *SPEEDS} == set(DEFINITIONS)


def test_loop_token_share_counts_tokens_of_all_requests_with_their_first() -> None:
    looping, other = [7, 7, 7, 3, 2], [1, 2, 3]
    terms = loop_token_share([looping, other])
    assert (terms.top.tolist(), terms.bottom.tolist(), terms.request.tolist()) == ([3, 0], [5, 3], [0, 1])
    assert terms.value == 3 / 8
    assert math.isnan(loop_token_share([]).value)


def test_loop_token_share_is_not_the_share_of_steps_with_a_loop() -> None:
    """One step of four tokens, three of them in a loop: every step is left out, and 3 of 5 tokens are looping."""
    output = [9, 4, 7, 7, 7]
    steps = mark_loops([row(3, 3)], output)
    assert value("loop_fraction", steps) == 1
    assert loop_token_share([output]).value == 3 / 5


def test_a_round_counts_once_whatever_its_batch() -> None:
    timed = {"draft_us": 10.0, "verify_us": 30.0, "other_us": 2.0}
    rows = [row(1, 1, request=name, **timed) for name in "abc"] + [row(1, 0, step=1, **timed)]
    times = RoundTimes.of(rows)
    assert (times.num_rounds, times.draft_us, times.verify_us, times.other_us) == (2, 20.0, 60.0, 4.0)
    assert times.ms_per_round == {"draft": 0.01, "verify": 0.03, "other": 0.002}
    assert RoundTimes.of([]).ms_per_round == {"draft": None, "verify": None, "other": None}
