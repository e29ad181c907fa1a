"""Tokens with their origin and their piece of text; scales and ticks of drawings."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.report.rows import Output
from experiments.report.settings import differing, labels, unlike
from experiments.report.svg import Scale, text, ticks
from experiments.report.texts import pieces, tokens_of
from specdec.metrics import StepRow


class Utf8:
    """Bytes as tokens; 256 is special and has no text."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id_ for id_ in ids if id_ < 256).decode(errors="replace")


def step(number: int, *, drafted: Sequence[int], accepted: int, emitted: Sequence[int], bonus: int = 0) -> StepRow:
    num = len(drafted)
    return StepRow(
        request_id="a", round=number, step=number, seq_len=4, proposed=num, depth=num, verified=num, accepted=accepted,
        emitted=len(emitted), bonus=bonus, draft_ids=tuple(drafted), output_ids=tuple(emitted),
    )  # fmt: skip


def test_tokens_know_how_they_came_about() -> None:
    steps = [
        step(0, drafted=(11, 12), accepted=2, emitted=(11, 12, 13), bonus=1),
        step(1, drafted=(14, 9), accepted=1, emitted=(14, 15)),
        step(2, drafted=(), accepted=0, emitted=(16,), bonus=1),
        step(3, drafted=(17, 18), accepted=2, emitted=(17,)),
    ]
    ids = tuple(range(10, 18))
    output = Output(request_id="a", turn=0, category="", output_ids=ids, finish_reason="length")
    tokens = tokens_of(output, steps, None)
    kinds = ["first", "accepted", "accepted", "bonus", "accepted", "corrected", "plain", "accepted"]
    assert [token.kind for token in tokens] == kinds
    assert [token.index for token in tokens] == [0, 0, 1, 2, 0, 1, 0, 0]
    assert [token.id for token in tokens] == list(ids)


def test_tokens_of_a_torn_file_end_with_its_steps() -> None:
    output = Output(request_id="a", turn=0, category="", output_ids=(1, 2, 3), finish_reason="length")
    assert [token.kind for token in tokens_of(output, [], None)] == ["first"]


def test_a_character_belongs_to_its_last_token() -> None:
    ids = [*"aé".encode(), 256, *b"b"]
    assert pieces(ids, Utf8()) == ["a", "", "é", "", "b"]
    assert pieces([1, 2], None) == ["", ""]


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=st.characters(exclude_characters="\ufffd", codec="utf-8"), max_size=30))
def test_pieces_are_the_text(written: str) -> None:
    assert "".join(pieces(list(written.encode()), Utf8())) == written


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_cover_their_range_in_few_steps(high: float, most: int) -> None:
    values = ticks(high, most=most)
    assert values[0] == 0 and values[-1] >= high * (1 - 1e-6)
    assert 2 <= len(values) <= most + 2


def test_scale_maps_ends_and_middle() -> None:
    scale = Scale(low=1, high=3, start=100, end=0)
    assert (scale(1), scale(2), scale(3)) == (100, 50, 0)
    assert Scale(low=1, high=1, start=5, end=9)(1) == 5


@pytest.mark.parametrize("written", ["<a>", '"&'])
def test_text_is_escaped(written: str) -> None:
    assert written not in text(written, 0, 0)


def test_settings_that_differ_are_named_once_and_uncommon_ones_alone_when_they_are_many() -> None:
    plain = {"drafter": "none", "sampling.seed": "0", "engine.threads": "1", "mode.threads": "1", "baseline": "off"}
    nextn = plain | {"drafter": "nextn", "drafter.num_draft_tokens": "3", "drafter.proposals": "greedy"}
    hot = nextn | {"sampling.seed": "1", "engine.threads": "2", "mode.threads": "2", "baseline": "auto"}
    assert differing([plain, nextn]) == ("drafter", "drafter.num_draft_tokens")
    assert differing([nextn, hot]) == ("sampling.seed", "engine.threads")
    assert labels([nextn, hot]) == [["seed 0", "threads 1"], ["seed 1", "threads 2"]]
    sampled = nextn | {"drafter.proposals": "sampled"}
    assert labels([nextn, nextn, sampled, hot]) == [[], [], ["proposals sampled"], ["seed 1", "threads 2"]]


def test_unlike_settings_are_those_that_both_runs_have() -> None:
    nextn = {"drafter": "nextn", "drafter.num_draft_tokens": "3", "drafter.proposals": "greedy", "baseline": "off"}
    ngram = {"drafter": "ngram", "drafter.num_draft_tokens": "5", "drafter.max_ngram": "4", "baseline": "auto"}
    assert unlike(nextn, ngram) == ("drafter", "drafter.num_draft_tokens")
