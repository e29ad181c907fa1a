import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafters.ngram import NgramConfig, NgramDrafter, NgramIndex
from specdec.errors import ConfigError
from specdec.testing import check_drafter


def make_drafter(**options) -> NgramDrafter:
    return NgramDrafter(NgramConfig(**options), device=torch.device("cpu"))


def drafted(proposal) -> list[list[int]]:
    counts = proposal.num_drafted_B.tolist()
    return [tokens[:count] for tokens, count in zip(proposal.tokens_BK.tolist(), counts, strict=True)]


@pytest.mark.parametrize(
    ("options", "history", "expected"),
    [
        ({}, [1, 2, 3, 9, 1, 2], [3, 9, 1]),
        ({"num_draft_tokens": 1}, [1, 2, 3, 9, 1, 2], [3]),
        ({"match": "latest"}, [1, 5, 1, 6, 1], [6, 1]),
        ({"match": "earliest"}, [1, 5, 1, 6, 1], [5, 1, 6]),
        # The longer suffix (4, 1) wins over a later match of (1).
        ({}, [4, 1, 7, 1, 8, 4, 1], [7, 1, 8]),
        ({"max_ngram": 1}, [4, 1, 7, 1, 8, 4, 1], [8, 4, 1]),
        ({}, [5, 5, 5], [5]),
        ({"match": "earliest", "max_ngram": 1}, [5, 5, 5, 5], [5, 5, 5]),
    ],
)
def test_ngram_continues_an_earlier_occurrence(options, history, expected, make_input) -> None:
    assert drafted(make_drafter(**options).propose(make_input([history]))) == [expected]


@pytest.mark.parametrize(("options", "history"), [({}, [1, 2, 3]), ({}, [1]), ({"min_ngram": 2}, [1, 2, 3, 2])])
def test_ngram_drafts_nothing_without_an_occurrence(options, history, make_input) -> None:
    assert make_drafter(**options).propose(make_input([history])) is None


def test_ngram_drafts_as_many_tokens_as_each_request_may_have(make_input) -> None:
    history = [1, 2, 3, 1, 2, 3, 1]
    inputs = make_input([history] * 3, limits=[0, 1, 31])
    assert drafted(make_drafter(num_draft_tokens=3).propose(inputs)) == [[], [2], [2, 3, 1]]


def test_ngram_drafts_nothing_when_nobody_wants_tokens(make_input) -> None:
    assert make_drafter().propose(make_input([[1, 1, 1]], limits=[0])) is None


def test_ngram_forgets_the_request_of_a_row(make_input) -> None:
    drafter = make_drafter()
    drafter.propose(make_input([[1, 2, 1, 2, 1]], rows=[3]))
    drafter.forget([3, 4])
    assert drafter.propose(make_input([[7, 8, 1]], rows=[3])) is None


def test_ngram_keeps_the_histories_of_rows_apart(make_input) -> None:
    drafter = make_drafter()
    proposal = drafter.propose(make_input([[1, 2, 1], [1, 3, 1]], rows=[1, 0]))
    assert drafted(proposal) == [[2, 1], [3, 1]]


@given(
    history=st.lists(st.integers(0, 2), min_size=1, max_size=25),
    cuts=st.lists(st.integers(1, 25), max_size=5),
    keep_latest=st.booleans(),
    limit=st.integers(1, 5),
)
def test_index_grown_in_steps_finds_what_a_scan_of_the_history_finds(history, cuts, keep_latest, limit) -> None:
    index = NgramIndex(min_ngram=1, max_ngram=3, keep_latest=keep_latest)
    for cut in sorted(cuts):
        index.update(history[:cut])
    index.update(history)
    found = index.continuations(history, limit)
    assert list(found[0] if found else ()) == scan(history, keep_latest=keep_latest, limit=limit)


def scan(history: list[int], *, keep_latest: bool, limit: int) -> list[int]:
    """The definition, without an index."""
    for length in (3, 2, 1):
        suffix = history[-length:]
        starts = [start for start in range(len(history) - length) if history[start : start + length] == suffix]
        if starts and length < len(history):
            start = (starts[-1] if keep_latest else starts[0]) + length
            return history[start : start + limit]
    return []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ngram": 0}, "max_ngram must be an integer from 1 to 16, got 0"),
        ({"max_ngram": 17}, "drafter.max_ngram"),
        ({"min_ngram": 0}, "drafter.min_ngram"),
        ({"min_ngram": 5}, "min_ngram must be at most max_ngram 4, got 5"),
        ({"branches": 0}, "branches must be an integer from 1 to 16, got 0"),
        ({"match": "newest"}, "one of latest, earliest, got 'newest'"),
    ],
)
def test_ngram_config_refuses_by_name(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        NgramConfig(**options)


def test_branches_are_continuations_merged_into_one_tree(make_input) -> None:
    # After 1 2 came 3 4 (newest), 3 5 and 6 7; the common 3 is one node.
    history = [1, 2, 6, 7, 0, 1, 2, 3, 5, 0, 1, 2, 3, 4, 0, 1, 2]
    drafter = make_drafter(num_draft_tokens=5, branches=3, max_ngram=2)
    assert drafter.needs.trees
    proposal = drafter.propose(make_input([history]))
    assert proposal.num_drafted_B.tolist() == [5]
    assert proposal.tokens_BK.tolist() == [[3, 6, 4, 5, 7]]
    assert proposal.parents_BK.tolist() == [[-1, -1, 0, 0, 1]]
    assert proposal.probs_BKV is None and proposal.sibling_draws is None


def test_branches_pass_the_check_of_drafters() -> None:
    tally = check_drafter(NgramConfig(num_draft_tokens=6, branches=3))
    assert tally.num_accepted > 0 and tally.num_preemptions > 0
