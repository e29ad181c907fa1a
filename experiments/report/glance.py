"""The report in a few figures, for the head of the page; each with its interval, its n and the run that it is of."""

from collections.abc import Sequence
from html import escape

from experiments.report.collect import FinishedRun, Found, Measure
from experiments.report.tables import interval
from experiments.report.theme import PLAIN


def glance(found: Found) -> str:
    """Most tokens per step, greatest speed-up, and how many runs are exact; nothing without a drafted run."""
    drafted = [run for run in found.finished if run.drafter != PLAIN]
    if not drafted:
        return ""
    items = [
        _best(drafted, "most tokens_per_step", [run.tokens_per_step for run in drafted], unit="steps"),
        _best(drafted, "greatest speedup", [run.speedup for run in drafted], unit="repeats"),
        _exact(drafted),
    ]
    return f'<dl class="glance">{"".join(items)}</dl>'


def _best(runs: Sequence[FinishedRun], name: str, measures: Sequence[Measure], *, unit: str) -> str:
    measured = [(one.value, run, one) for run, one in zip(runs, measures, strict=True) if one.value is not None]
    if not measured:
        return ""
    value, run, one = max(measured, key=lambda item: item[0])
    return _item(name, f"{value:.2f}", f"{run.label}: {interval(one)}, n = {one.n} {unit}", run.style)


def _exact(runs: Sequence[FinishedRun]) -> str:
    exact = sum(run.lossless is True for run in runs)
    lossy = sum(run.lossless is False for run in runs)
    return _item(
        "lossless",
        f"{exact} of {len(runs)}",
        f"drafted runs are exact; {lossy} not, {len(runs) - exact - lossy} not compared",
    )


def _item(name: str, value: str, told: str, style: str = "") -> str:
    dot = f'<span class="dot {style}"></span>' if style else ""
    return f"<div><dt>{escape(name)}</dt><dd><b>{escape(value)}</b> {dot}{escape(told)}</dd></div>"
