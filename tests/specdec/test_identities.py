"""Identities: they hold for every run that follows the rules, and each kind of wrong row is found."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.identities import check_identities
from specdec.metrics import CUTS, StepRow


@st.composite
def runs(draw) -> tuple[list[StepRow], dict[tuple[str, int], int]]:
    """Rows and output lengths of a few requests whose last step may be cut."""
    rows, lens = [], {}
    fixed = draw(st.one_of(st.none(), st.integers(0, 5)))
    for request in range(draw(st.integers(1, 4))):
        num_steps = draw(st.integers(0, 5))
        lens[f"r{request}", 0] = 1
        for step in range(num_steps):
            proposed = draw(st.integers(0, 5)) if fixed is None else fixed
            verified = draw(st.integers(0, proposed)) if fixed is None else fixed
            accepted = draw(st.integers(0, verified))
            cut = draw(st.sampled_from(CUTS)) if step == num_steps - 1 else "none"
            emitted = accepted + 1 if cut == "none" else draw(st.integers(1, accepted + 1))
            lens[f"r{request}", 0] += emitted
            rows.append(
                StepRow(
                    request_id=f"r{request}",
                    round=step,
                    step=step,
                    seq_len=step,
                    proposed=proposed,
                    depth=proposed,
                    verified=verified,
                    accepted=accepted,
                    emitted=emitted,
                    bonus=int(accepted == verified and emitted == accepted + 1),
                    cut=cut,
                )
            )
    return rows, lens


@settings(deadline=None, max_examples=150)
@given(runs())
def test_identities_hold_for_every_well_formed_run(run) -> None:
    rows, lens = run
    assert check_identities(rows, lens) == ()


ROW = StepRow(
    request_id="a", round=0, step=0, seq_len=4, proposed=3, depth=3, verified=3, accepted=2, emitted=3, bonus=0
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accepted": 4, "emitted": 5}, "accepted 4"),
        ({"verified": 1}, "accepted 2"),
        ({"verified": 4}, "verified 4"),
        ({"emitted": 4}, "emitted 4"),
        ({"emitted": 2}, "not cut"),
        ({"emitted": 0, "cut": "eos"}, "emitted 0"),
        ({"cut": "budget"}, "budget"),
        ({"bonus": 1}, "bonus"),
    ],
)
def test_a_wrong_row_is_named(changes, words: str) -> None:
    row = replace(ROW, **changes)
    problems = check_identities([row], {("a", 0): 1 + row.emitted})
    assert any(words in problem and "request a" in problem for problem in problems)


def test_tokens_must_add_up_for_every_request() -> None:
    assert check_identities([ROW], {("a", 0): 4}) == ()
    assert "1 + sum of emitted is 4" in check_identities([ROW], {("a", 0): 5})[0]
    assert check_identities([ROW], {("a", 0): 4, ("b", 0): 2})
    assert check_identities([ROW], {})
    assert check_identities([], {}) == ()
