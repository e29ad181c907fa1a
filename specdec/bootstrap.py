"""Bootstrap intervals over requests; knows of a formula only its numerators and denominators.

Requests are resampled, not steps: steps of one request depend on each other (Efron and Tibshirani, 1993, chapter 13,
percentile intervals).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdec.metrics import FORMULAS, POSITION_FORMULAS, StepRow, Steps, Terms

NUM_RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its 95 % interval.

    value      NaN where nothing was observed
    low, high  NaN with fewer than two requests, from which no interval follows
    n          observations: the denominator of the value
    """

    value: float
    low: float
    high: float
    n: int


class Bootstrap:
    """Resampled weights of the requests of a run; holds them so that every metric sees the same resamples."""

    def __init__(self, num_requests: int, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> None:
        self._num_requests = num_requests
        shape = (num_resamples, num_requests)
        draws = np.random.default_rng(seed).integers(num_requests, size=shape) if num_requests else np.zeros(shape)
        rows = np.arange(num_resamples)[:, None] * num_requests
        flat = np.bincount((rows + draws).astype(np.int64).ravel(), minlength=num_resamples * num_requests)
        self._weights = flat.reshape(shape).astype(np.float64)

    def estimate(self, terms: Terms) -> Estimate:
        """Value of ``terms`` and its interval."""
        low, high = self._interval(self._resampled(terms))
        return Estimate(value=terms.value, low=low, high=high, n=terms.num)

    def difference(self, new: Terms, old: Terms) -> Estimate:
        """``new`` minus ``old`` for two runs whose requests have the same numbers, each resample shared by both."""
        low, high = self._interval(self._resampled(new) - self._resampled(old))
        return Estimate(value=new.value - old.value, low=low, high=high, n=self._num_requests)

    def _resampled(self, terms: Terms) -> np.ndarray:
        """Value in every resample, float64 [num_resamples]; NaN where the resample observed nothing."""
        size = self._num_requests
        top = self._weights @ np.bincount(terms.request, weights=terms.top, minlength=size)
        bottom = self._weights @ np.bincount(terms.request, weights=terms.bottom, minlength=size)
        return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)

    def _interval(self, values: np.ndarray) -> tuple[float, float]:
        known = values[~np.isnan(values)]
        if self._num_requests < 2 or not len(known):
            return float("nan"), float("nan")
        low, high = np.percentile(known, PERCENTILES)
        return float(low), float(high)


def estimates(
    rows: Sequence[StepRow], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[str, Estimate | tuple[Estimate, ...]]:
    """Every metric of ``rows`` by name with its interval; a tuple over positions 1, 2, ... for those by position."""
    steps = Steps.of(rows)
    bootstrap = Bootstrap(steps.num_requests, num_resamples=num_resamples, seed=seed)
    out: dict[str, Estimate | tuple[Estimate, ...]] = {}
    for name, formula in FORMULAS.items():
        out[name] = bootstrap.estimate(formula(steps))
    for name, by_position in POSITION_FORMULAS.items():
        positions = range(1, steps.max_depth + 1)
        out[name] = tuple(bootstrap.estimate(by_position(steps, position)) for position in positions)
    return out
