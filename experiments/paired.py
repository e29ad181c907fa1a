"""Paired metrics: how far two runs of the same prompts differ, with intervals over requests; holds no formula.

Requests are resampled in pairs, so that what makes a prompt easy or hard falls out of the difference.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.finished_run import FinishedRun, Key
from experiments.pairing import Pair
from specdec.bootstrap import Bootstrap, Estimate
from specdec.metrics import FORMULAS, POSITION_FORMULAS, Steps, Terms, loop_token_share
from specdec.step_row import StepRow

LOOP_SHARE = "loop_token_share"
LOWER_IS_BETTER = ("wasted_draft_fraction", "loop_fraction", LOOP_SHARE)
# Standard normal quantiles of 97.5 % (the interval) and 80 % (the power).
Z_INTERVAL = 1.959964
Z_POWER = 0.841621
DETECTABLE = "the true difference that four of five such pairs of runs would find (95 % interval, power 80 %)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One metric of two runs; ``change`` is new minus old, and ``change.n`` the number of pairs of requests."""

    name: str
    old: Estimate
    new: Estimate
    change: Estimate

    @property
    def detectable(self) -> float:
        """Minimal detectable difference, from the standard error that the interval implies; NaN without one."""
        return (self.change.high - self.change.low) / (2 * Z_INTERVAL) * (Z_INTERVAL + Z_POWER)

    @property
    def observed(self) -> bool:
        """Whether either run has observed it."""
        return bool(self.old.n or self.new.n)

    def is_worse(self, tolerance: float) -> bool:
        """Whether the whole interval lies on the worse side of ``tolerance``."""
        if lower_is_better(self.name):
            return self.change.low > tolerance
        return self.change.high < -tolerance


def lower_is_better(name: str) -> bool:
    """Whether a smaller value of this metric is the better one."""
    return name in LOWER_IS_BETTER


class PairedMetrics:
    """Every metric of a pair of runs; holds the resamples, so that all metrics see the same."""

    def __init__(self, pair: Pair, *, without_loops: bool = False) -> None:
        self._bootstrap = Bootstrap(len(pair.keys))
        self._old = _Side(pair.old, pair.keys, without_loops=without_loops)
        self._new = _Side(pair.new, pair.keys, without_loops=without_loops)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all metrics; those by position end in ``[1]``, ``[2]``, ..."""
        depth = max(self._old.max_depth, self._new.max_depth)
        by_position = (f"{name}[{i}]" for name in POSITION_FORMULAS for i in range(1, depth + 1))
        return (*FORMULAS, LOOP_SHARE, *by_position)

    def difference(self, name: str) -> Difference:
        """The metric of this name, one of ``names``, in both runs."""
        old, new = self._old.terms(name), self._new.terms(name)
        return Difference(
            name=name,
            old=self._bootstrap.estimate(old),
            new=self._bootstrap.estimate(new),
            change=self._bootstrap.difference(new, old),
        )


class _Side:
    """One run of a pair, with its requests numbered as in the pair."""

    def __init__(self, run: FinishedRun, keys: Sequence[Key], *, without_loops: bool) -> None:
        number = {key: i for i, key in enumerate(keys)}
        rows = [row for row in run.rows if _key(row) in number and not (without_loops and row.in_loop)]
        self._steps = Steps.of(rows)
        # Steps numbers requests as they appear, and a request that ended with its first token has no step.
        self._numbers = np.array([number[key] for key in dict.fromkeys(map(_key, rows))], dtype=np.int64)
        self._outputs = [run.outputs[key]["output_ids"] for key in keys]

    @property
    def max_depth(self) -> int:
        return self._steps.max_depth

    def terms(self, name: str) -> Terms:
        if name == LOOP_SHARE:
            return loop_token_share(self._outputs)
        found = _formula(name)(self._steps)
        return replace(found, request=self._numbers[found.request])


def _formula(name: str) -> Callable[[Steps], Terms]:
    base, _, position = name.removesuffix("]").partition("[")
    if not position:
        return FORMULAS[base]
    return lambda steps: POSITION_FORMULAS[base](steps, int(position))


def _key(row: StepRow) -> Key:
    return row.request_id, row.turn


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptChange:
    """Tokens per step of one request in two runs."""

    key: Key
    old: float
    new: float

    @property
    def change(self) -> float:
        return self.new - self.old


def prompt_changes(pair: Pair) -> list[PromptChange]:
    """Requests with steps in both runs whose tokens per step differ, the largest difference first."""
    old, new = _tokens_per_step(pair.old.rows), _tokens_per_step(pair.new.rows)
    both = [key for key in pair.keys if key in old and key in new and old[key] != new[key]]
    return sorted((PromptChange(key=k, old=old[k], new=new[k]) for k in both), key=lambda item: -abs(item.change))


def _tokens_per_step(rows: Sequence[StepRow]) -> dict[Key, float]:
    emitted: Counter[Key] = Counter()
    for row in rows:
        emitted[_key(row)] += row.emitted
    return {key: emitted[key] / num for key, num in Counter(map(_key, rows)).items()}
