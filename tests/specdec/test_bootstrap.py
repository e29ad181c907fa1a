"""Bootstrap: coverage, pairing, degenerate runs, and speed."""

import math

import numpy as np

from specdec.bootstrap import Bootstrap, estimates
from specdec.metrics import StepRow, Steps, Terms, tokens_per_step


def rows_of(num_requests: int, *, num_steps: int = 8, seed: int = 0) -> list[StepRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for request in range(num_requests):
        rate = rng.uniform(0.2, 0.9)
        for step in range(num_steps):
            accepted = min(int(rng.geometric(1 - rate)) - 1, 4)
            rows.append(
                StepRow(
                    request_id=f"r{request}",
                    round=step,
                    step=step,
                    seq_len=step,
                    proposed=4,
                    depth=4,
                    verified=4,
                    accepted=accepted,
                    emitted=accepted + 1,
                    bonus=int(accepted == 4),
                )
            )
    return rows


def test_interval_resamples_requests_not_steps() -> None:
    """Steps that only repeat each other within a request do not narrow the interval."""
    once = estimates(rows_of(40, num_steps=1))["tokens_per_step"]
    rows = [row for row in rows_of(40, num_steps=1) for _ in range(25)]
    often = estimates(rows)["tokens_per_step"]
    assert (often.low, often.high, often.value) == (once.low, once.high, once.value)
    assert (once.n, often.n) == (40, 1000)


def test_interval_matches_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    terms = Terms(values, np.ones(400), np.arange(400))
    got = Bootstrap(400, num_resamples=4000).estimate(terms)
    half = 1.96 * values.std() / 20
    assert abs((got.high - got.low) / 2 - half) < 0.06 * half
    assert abs((got.high + got.low) / 2 - got.value) < 0.1 * half


def test_the_same_seed_gives_the_same_interval() -> None:
    rows = rows_of(30)
    assert repr(estimates(rows, seed=3)) == repr(estimates(rows, seed=3))
    assert estimates(rows, seed=3)["tokens_per_step"] != estimates(rows, seed=4)["tokens_per_step"]


def test_no_interval_follows_from_fewer_than_two_requests() -> None:
    one = estimates(rows_of(1))
    assert one["tokens_per_step"].value > 1 and math.isnan(one["tokens_per_step"].low)
    none = estimates([])
    assert math.isnan(none["tokens_per_step"].value) and none["tokens_per_step"].n == 0
    assert none["survival"] == ()


def test_positions_that_few_requests_reach_keep_finite_intervals() -> None:
    rows = [*rows_of(20), *rows_of(1)]
    got = estimates(rows)
    assert len(got["conditional"]) == 4
    assert all(e.low <= e.value <= e.high for e in got["survival"])


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    old, new = Steps.of(rows_of(60, seed=1)), Steps.of(rows_of(60, seed=1))
    bootstrap = Bootstrap(60)
    same = bootstrap.difference(tokens_per_step(new), tokens_per_step(old))
    assert (same.value, same.low, same.high) == (0, 0, 0)
    better = Terms(new.emitted + 0.5, np.ones(len(new)), new.request)
    got = bootstrap.difference(better, tokens_per_step(old))
    assert abs(got.low - 0.5) < 1e-9 and abs(got.high - 0.5) < 1e-9
