"""Loops: what counts as one, at the edges of period and repetition, and how steps are marked."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.loops import MAX_PERIOD, in_loop, mark_loops
from specdec.metrics import StepRow


def marked(tokens: list[int]) -> list[int]:
    return in_loop(tokens).nonzero()[0].tolist()


def test_three_periods_are_a_loop_and_fewer_are_not() -> None:
    assert marked([9, 1, 2, 1, 2, 1, 2, 8]) == [1, 2, 3, 4, 5, 6]
    assert marked([9, 1, 2, 1, 2, 1, 8]) == []
    assert marked([5, 5, 5]) == [0, 1, 2]
    assert marked([5, 5]) == []


def test_a_loop_may_end_within_a_period() -> None:
    assert marked([1, 2, 3] * 3 + [1, 2, 7]) == list(range(11))


def test_the_longest_period_counts_and_one_more_does_not() -> None:
    assert all(in_loop(list(range(MAX_PERIOD)) * 3))
    assert not any(in_loop(list(range(MAX_PERIOD + 1)) * 3))


def test_short_or_empty_output_has_no_loop() -> None:
    assert marked([]) == [] and marked([1]) == []


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_marks_match_the_definition(tokens: list[int]) -> None:
    want = set()
    for period in range(1, MAX_PERIOD + 1):
        for start in range(len(tokens)):
            for end in range(start + 3 * period, len(tokens) + 1):
                if all(tokens[i] == tokens[i + period] for i in range(start, end - period)):
                    want.update(range(start, end))
    assert set(marked(tokens)) == want


def test_steps_are_in_a_loop_when_any_of_their_tokens_is() -> None:
    output = [9, 4, 7, 7, 7, 3, 2]
    spans = [1, 2, 2, 1]
    base = StepRow(
        request_id="a", round=0, step=0, seq_len=5, proposed=1, depth=1, verified=1, accepted=0, emitted=1, bonus=0
    )
    rows = [replace(base, step=i, accepted=n - 1, emitted=n) for i, n in enumerate(spans)]
    # Step 0 emits [4], step 1 [7, 7], step 2 [7, 3], step 3 [2]; the first token came from the prompt.
    assert [row.in_loop for row in mark_loops(rows, output)] == [False, True, True, False]
