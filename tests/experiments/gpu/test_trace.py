"""Traces of replays and their phases, over times that can be added by hand."""

import pytest

from experiments.gpu.phases import GAPS, cut, shares
from experiments.gpu.timing import Calls
from experiments.gpu.trace import Launch, ReplayTrace, TraceError, split, trace_replay


def trace_of(*events: tuple[str, float, float]) -> ReplayTrace:
    return ReplayTrace(events=tuple(Launch(name=name, start_us=start, end_us=end) for name, start, end in events))


# Copy 0..1, gap, two kernels that overlap 2..7, gap, one 8..10 with which the next begins at 9.
WHOLE = trace_of(("copy", 0, 1), ("product", 2, 6), ("product", 5, 7), ("choose", 8, 10), ("pack", 9, 11))
PREFIXES = {"stage": ("copy",), "target": ("copy", "product", "product"), "verify": WHOLE.names[:4]}


def test_a_replay_is_idle_where_nothing_runs() -> None:
    assert WHOLE.span_us == 11 and WHOLE.busy_us == 9 and WHOLE.idle_share == pytest.approx(2 / 11)
    assert WHOLE.launches == {"copy": 1, "product": 2, "choose": 1, "pack": 1} and WHOLE.num_launches == 5
    assert WHOLE.kernels_us["product"] == 6


def test_phases_add_up_to_the_replay() -> None:
    phases = cut(WHOLE, PREFIXES, last="result")
    assert [each.name for each in phases] == ["stage", "target", "verify", "result"]
    assert [each.num_launches for each in phases] == [1, 2, 1, 1]
    assert [each.span_us for each in phases] == [2, 6, 1, 2]
    assert [each.gap_us for each in phases] == [1, 1, 0, 0]


def test_shares_are_those_of_an_untraced_replay() -> None:
    found = shares(cut(WHOLE, PREFIXES, last="result"), replay_us=10.0)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["target"] == pytest.approx(5 / 10) and found[GAPS] == pytest.approx(1 / 10)


def test_a_prefix_that_is_not_what_the_round_begins_with_is_refused() -> None:
    with pytest.raises(TraceError, match="launch 1 is 'norm' in a round that ends with its target .*'product'"):
        cut(WHOLE, {"target": ("copy", "norm", "product")}, last="result")
    with pytest.raises(TraceError, match="launch 5 is 'more' .*'nothing' in the whole round"):
        cut(WHOLE, {"target": (*WHOLE.names, "more")}, last="result")


def test_a_phase_without_launches_is_refused() -> None:
    with pytest.raises(TraceError, match="the result of a round of 5 launches has none"):
        cut(WHOLE, {"all": WHOLE.names}, last="result")
    with pytest.raises(TraceError, match="the verify of a round of 5"):
        cut(WHOLE, {"target": ("copy", "product"), "verify": ("copy",)}, last="result")


def test_replays_that_differ_are_refused() -> None:
    first = [(0.0, 1.0, "a"), (2.0, 1.0, "b")]
    assert [each.span_us for each in split([*first, (9.0, 1.0, "a"), (12.0, 1.0, "b")], 2)] == [3.0, 4.0]
    with pytest.raises(TraceError, match="3 launches in 2 replays"):
        split([*first, (9.0, 1.0, "a")], 2)
    with pytest.raises(TraceError, match="launch 1 is 'b' .* 'c' in another replay"):
        split([*first, (9.0, 1.0, "a"), (12.0, 1.0, "c")], 2)
    with pytest.raises(TraceError, match="0 launches"):
        split([], 2)


def test_what_launches_nothing_cannot_be_traced() -> None:
    with pytest.raises(TraceError, match="0 launches in 1 replays"):
        trace_replay(Calls((lambda: None,)), replays=1)
