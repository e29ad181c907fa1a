import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.lengths import FixedLength, MovingAverage, Outcome, UpperConfidence


def outcome(verified: int, accepted: int, allowed: int | None = None) -> Outcome:
    return Outcome(allowed=verified if allowed is None else allowed, verified=verified, accepted=accepted)


def played(policy, rounds: int, acceptance: int) -> list[int]:
    """Lengths over some rounds in which at most ``acceptance`` tokens are accepted."""
    lengths = []
    for _ in range(rounds):
        lengths.append(policy.length())
        policy.observe(outcome(lengths[-1], min(lengths[-1], acceptance)))
    return lengths


def bandit(**options) -> UpperConfidence:
    return UpperConfidence(**{"least": 1, "most": 6, "token_cost": 0.2, "exploration": 0.1, **options})


def test_fixed_length_never_changes() -> None:
    assert played(FixedLength(4), 5, 0) == [4] * 5


@pytest.mark.parametrize(("acceptance", "last"), [(0, 1), (2, 3), (6, 6)])
def test_moving_average_settles_one_above_what_is_accepted(acceptance: int, last: int) -> None:
    lengths = played(MovingAverage(least=1, most=6, window=4), 12, acceptance)
    assert lengths[0] == 6 and lengths[-1] == last


def test_moving_average_forgets_what_lies_beyond_its_window() -> None:
    policy = MovingAverage(least=1, most=6, window=2)
    for accepted in (0, 0, 4, 4):
        policy.observe(outcome(6, accepted))
    assert policy.length() == 5


def test_moving_average_ignores_rounds_without_a_draft() -> None:
    policy = MovingAverage(least=1, most=6, window=4)
    policy.observe(outcome(0, 0, allowed=6))
    assert policy.length() == 6


@pytest.mark.parametrize(("acceptance", "wanted"), [(0, 1), (2, 2), (6, 6)])
def test_bandit_settles_on_the_length_of_most_tokens_per_cost(acceptance: int, wanted: int) -> None:
    assert set(played(bandit(), 200, acceptance)[-20:]) == {wanted}


def test_bandit_drafts_nothing_where_nothing_pays() -> None:
    assert played(bandit(least=0), 200, 0)[-1] == 0


def test_bandit_credits_shorter_lengths_with_every_round() -> None:
    policy = bandit(exploration=0.0)
    policy.observe(outcome(6, 1))
    # One token was accepted: (1 + 1) / (1 + 0.2) is the best of all.
    assert policy.length() == 1


def test_bandit_takes_a_drafter_that_stays_silent_at_its_word() -> None:
    policy = bandit(exploration=0.0)
    policy.observe(outcome(0, 0, allowed=6))
    assert policy.length() == 6


OUTCOMES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=30)


@settings(deadline=None, max_examples=40)
@given(OUTCOMES)
def test_lengths_stay_in_range_and_follow_from_the_record_alone(rounds) -> None:
    def run(policy) -> list[int]:
        lengths = [policy.length()]
        for numbers in rounds:
            accepted, verified, allowed = sorted(numbers)
            policy.observe(Outcome(allowed=allowed, verified=verified, accepted=accepted))
            lengths.append(policy.length())
        return lengths

    for make in (lambda: MovingAverage(least=2, most=5, window=3), lambda: bandit(least=2, most=5)):
        lengths = run(make())
        assert all(2 <= length <= 5 for length in lengths)
        assert lengths == run(make())
