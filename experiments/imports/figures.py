"""Figures of imported statistics by this project's formulas; what does not follow from the counts is null, and said."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Any

import numpy as np

from experiments.imports.statistics import RequestCounts, Statistics, Window
from experiments.summary import Number, metrics_of, number
from specdec.bootstrap import Bootstrap
from specdec.metrics import FORMULAS, POSITION_FORMULAS, StepRow, Steps, Terms

NOTHING: Number = {"value": None, "low": None, "high": None, "n": 0}
MAX_ROWS = 100_000
OF_ALL_STEPS = (
    "steps without a draft are not counted, so tokens_per_step is not known (drafts=always says there are none)"
)
CUTS = "what a stop cut off is not known: survival and conditional are their raw variants, and emitted is accepted + 1"
NOT_IN_ROWS = "seq_len, times and loops of the rows are not known; they stand as 0 and false"
Metrics = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Metrics by name as in ``summary.json``, the rows that they follow from, and what a reader must know.

    histogram  steps that accepted 0, 1, 2, ... drafts; empty where it is not known
    """

    metrics: Metrics
    rows: tuple[StepRow, ...] = ()
    histogram: tuple[int, ...] = ()
    num_steps: int = 0
    num_draft_tokens: int | None = None
    notes: tuple[str, ...] = ()


def figures_of(found: Statistics, *, every_step_drafts: bool, category: str) -> Figures:
    """The figures that ``found`` allows.

    every_step_drafts  its user knows that no step went without a draft, as with MTP and EAGLE
    """
    if found.requests:
        return _of_requests(found.requests, category)
    if found.windows:
        return _of_windows(found.windows, every_step_drafts, category)
    metrics = _nothing()
    metrics["tokens_per_step"] = {**NOTHING, "value": fmean(found.lengths)}
    return Figures(metrics=metrics)


def _nothing() -> Metrics:
    return {**dict.fromkeys(FORMULAS, NOTHING), **{name: [] for name in POSITION_FORMULAS}}


def _of_windows(windows: Sequence[Window], every_step_drafts: bool, category: str) -> Figures:
    histograms = [histogram for window in windows if (histogram := window.histogram) is not None]
    if len(histograms) == len(windows) and len(set(map(len, histograms))) == 1:
        figures = _of_histograms(histograms, category)
    else:
        figures = _of_totals(windows)
    notes = [*figures.notes]
    if every_step_drafts:
        figures.metrics["tokens_per_step"] = figures.metrics["tokens_per_drafted_step"]
    else:
        figures.metrics["tokens_per_step"] = NOTHING
        notes.append(OF_ALL_STEPS)
    return Figures(
        metrics=figures.metrics,
        rows=figures.rows,
        histogram=figures.histogram,
        num_steps=figures.num_steps,
        num_draft_tokens=figures.num_draft_tokens,
        notes=tuple(notes),
    )


def _of_histograms(histograms: Sequence[Sequence[int]], category: str) -> Figures:
    """All steps drafted equally many, so that the counts say how many steps of each kind there were."""
    length = len(histograms[0]) - 1
    total = [sum(column) for column in zip(*histograms, strict=True)]
    kinds = [_step(length, accepted, "", 0, category) for accepted in range(length + 1)]
    steps, weights = Steps.of(kinds), np.array(total, dtype=np.float64)
    metrics = _nothing()
    for name in ("tokens_per_drafted_step", "accepted_per_drafted_step", "draft_acceptance_rate"):
        metrics[name] = _weighted(FORMULAS[name](steps), weights)
    metrics["wasted_draft_fraction"] = _weighted(FORMULAS["wasted_draft_fraction"](steps), weights)
    for name, formula in POSITION_FORMULAS.items():
        metrics[name] = [_weighted(formula(steps, position), weights) for position in range(1, length + 1)]
    notes = [CUTS]
    rows: tuple[StepRow, ...] = ()
    if sum(total) <= MAX_ROWS:
        rows = tuple(
            row for number, one in enumerate(histograms, start=1) for row in _rows(one, f"window-{number}", category)
        )
        notes.append(NOT_IN_ROWS)
    else:
        notes.append(f"the {sum(total)} steps are not written as rows, since they are more than {MAX_ROWS}")
    return Figures(
        metrics=metrics,
        rows=rows,
        histogram=tuple(total),
        num_steps=sum(total),
        num_draft_tokens=length,
        notes=tuple(notes),
    )


def _of_totals(windows: Sequence[Window]) -> Figures:
    """Sums alone: means over all steps or drafts, nothing by position but what is over drafted steps."""
    metrics = _nothing()
    drafted, accepted = (
        sum(values) for values in zip(*((w.num_drafted, w.num_accepted) for w in windows), strict=True)
    )
    metrics["draft_acceptance_rate"] = _single(accepted, drafted)
    metrics["wasted_draft_fraction"] = _single(drafted - accepted, drafted)
    drafts = [window.num_drafts for window in windows if window.num_drafts is not None]
    notes = ["steps by accepted length do not follow from these counts: no rows, no survival, no histogram"]
    num_steps = 0
    if len(drafts) == len(windows):
        num_steps = sum(drafts)
        metrics["tokens_per_drafted_step"] = _single(accepted + num_steps, num_steps)
        metrics["accepted_per_drafted_step"] = _single(accepted, num_steps)
        at = [window.accepted_at for window in windows if window.accepted_at is not None]
        if len(at) == len(windows) and len(set(map(len, at))) == 1:
            metrics["survival_fixed"] = [_single(sum(column), num_steps) for column in zip(*at, strict=True)]
    else:
        notes.append("the number of steps does not follow from these counts, and means over steps are not known")
    return Figures(metrics=metrics, num_steps=num_steps, notes=tuple(notes))


def _of_requests(requests: Sequence[RequestCounts], category: str) -> Figures:
    lengths = {request.num_draft_tokens for request in requests}
    length = next(iter(lengths)) if len(lengths) == 1 else None
    histograms = [request.histogram for request in requests if request.histogram is not None]
    differ = sum(
        request.num_output is not None and request.num_output - 1 != request.num_accepted + request.num_steps
        for request in requests
    )
    notes = [CUTS]
    if differ:
        notes.append(f"{differ} of {len(requests)} requests produced other than 1 + accepted + steps tokens")
    whole = length is not None and len(histograms) == len(requests) and max(map(len, histograms)) <= length + 1
    if whole and sum(request.num_steps for request in requests) <= MAX_ROWS:
        assert length is not None, "every request drafts equally many"
        notes += [NOT_IN_ROWS, "drafts are taken for chains: meta_info does not say whether they were trees"]
        rows = tuple(
            row for request in requests for row in _rows(request.histogram or (), request.id, category, length=length)
        )
        metrics = {**metrics_of(rows), "loop_fraction": NOTHING, "drafted_step_share": NOTHING}
        histogram = [sum(column) for column in zip(*(_padded(one, length + 1) for one in histograms), strict=True)]
    else:
        notes.append("steps by accepted length do not follow from these counts: no rows, no survival, no histogram")
        rows, metrics, histogram = (), _sums_of_requests(requests), []
    return Figures(
        metrics=metrics,
        rows=rows,
        histogram=tuple(histogram),
        num_steps=sum(request.num_steps for request in requests),
        num_draft_tokens=length,
        notes=tuple(notes),
    )


def _sums_of_requests(requests: Sequence[RequestCounts]) -> Metrics:
    """Means with their intervals over requests; every step of this engine drafts."""
    metrics = _nothing()
    bootstrap = Bootstrap(len(requests))
    numbers = np.arange(len(requests))

    def estimate(top: Callable[[RequestCounts], int], bottom: Callable[[RequestCounts], int]) -> Number:
        tops, bottoms = (np.array([take(one) for one in requests], dtype=np.float64) for take in (top, bottom))
        return number(bootstrap.estimate(Terms(tops, bottoms, numbers)))

    metrics["tokens_per_step"] = estimate(lambda one: one.num_accepted + one.num_steps, lambda one: one.num_steps)
    metrics["tokens_per_drafted_step"] = metrics["tokens_per_step"]
    metrics["accepted_per_drafted_step"] = estimate(lambda one: one.num_accepted, lambda one: one.num_steps)
    metrics["draft_acceptance_rate"] = estimate(lambda one: one.num_accepted, lambda one: one.num_drafted)
    metrics["wasted_draft_fraction"] = estimate(
        lambda one: one.num_drafted - one.num_accepted, lambda one: one.num_drafted
    )
    return metrics


def _rows(histogram: Sequence[int], request_id: str, category: str, *, length: int | None = None) -> list[StepRow]:
    """Rows of these counts; their order is not known, so they stand by accepted length."""
    proposed = len(histogram) - 1 if length is None else length
    kinds = [accepted for accepted, count in enumerate(histogram) for _ in range(count)]
    return [_step(proposed, accepted, request_id, step, category) for step, accepted in enumerate(kinds)]


def _step(proposed: int, accepted: int, request_id: str, step: int, category: str) -> StepRow:
    return StepRow(
        request_id=request_id,
        category=category,
        round=step,
        step=step,
        seq_len=0,
        proposed=proposed,
        depth=proposed,
        verified=proposed,
        accepted=accepted,
        emitted=accepted + 1,
        bonus=int(accepted == proposed),
    )


def _padded(histogram: Sequence[int], size: int) -> list[int]:
    return [*histogram, *[0] * (size - len(histogram))]


def _weighted(terms: Terms, weights: np.ndarray) -> Mapping[str, Any]:
    """A metric over steps that stand for as many as their weight; no interval, since requests are not known."""
    every = Terms(terms.top * weights, terms.bottom * weights, terms.request)
    return {**NOTHING, "value": None if isnan(every.value) else every.value, "n": every.num}


def _single(top: int, bottom: int) -> Mapping[str, Any]:
    return {**NOTHING, "value": top / bottom if bottom else None, "n": bottom}
