"""The view by category of prompt: heat maps over runs, and a figure with intervals for some of them."""

from collections.abc import Mapping, Sequence

from experiments.report import charts
from experiments.report.baselines import baselines_of
from experiments.report.charts_heat import Heat, HeatCell, heat
from experiments.report.collect import FinishedRun
from experiments.report.html import definitions, details, figure, figures, section
from experiments.report.rows import Rows

MAX_ROWS = 40
MOST_CATEGORIES = 24
ALL = "all"
CELL = 50


def category_view(
    runs: Sequence[FinishedRun],
    rows: Mapping[int, Rows],
    *,
    chosen: Sequence[FinishedRun],
) -> str:
    """Tokens per step and speed-up by category, for runs that drafted and whose rows could be read.

    chosen  runs that get a figure of their own, with intervals
    """
    drafted = [run for run in runs if run.survival and run.number in rows and rows[run.number].by_category]
    if not drafted:
        return ""
    categories = sorted({name for run in drafted for name in rows[run.number].by_category})[:MOST_CATEGORIES]
    shown = sorted(
        sorted(drafted, key=lambda run: -(run.tokens_per_step.value or 0))[:MAX_ROWS], key=lambda r: r.number
    )
    left_out = f" The {MAX_ROWS} of {len(drafted)} runs with most tokens per step." if len(shown) < len(drafted) else ""
    gain = _gain(shown, rows, categories)
    drawn = [
        figure(
            "Tokens per step",
            heat(gain, label="tokens per step by category", cell=CELL),
            f"At the right: n steps of the run.{left_out}",
            wide=True,
        )
    ]
    speed = _speed(shown, rows, categories, baselines_of(runs))
    if speed.cells:
        drawing = heat(speed, label="speed-up by category", cell=CELL)
        note = "One timing, so no interval. At the right: n steps of the run. Grey: no plain run of these prompts here."
        drawn.append(figure("Speed-up over plain decoding", drawing, note, wide=True))
    dots = _dots([run for run in chosen if run in drafted], rows)
    return section(
        "categories",
        "By category of prompt",
        "What kind of text is drafted well. Darker blue: more tokens per step. Green: faster than plain decoding; "
        "orange: slower.",
        figures(drawn, wide=True),
        details("With intervals, run by run", figures(dots), is_open=len(dots) == 1) if dots else "",
        definitions(
            ("tokens_per_step",),
            (
                "speed-up by category",
                "emitted tokens per second of the rounds of these prompts / the same of plain decoding; a round's time "
                "is split evenly over the requests in it, and prefill that shared a round is in it",
            ),
        ),
    )


def _gain(runs: Sequence[FinishedRun], rows: Mapping[int, Rows], categories: Sequence[str]) -> Heat:
    cells = {}
    for i, run in enumerate(runs):
        for j, (name, one) in enumerate([*_found(rows[run.number], categories), (ALL, run.tokens_per_step)]):
            if one is not None and one.value is not None:
                tip = f"{run.label}, {name}: {charts.said(one)}"
                cells[i, j] = HeatCell(value=one.value, text=f"{one.value:.2f}", tip=tip)
    return _heat(runs, categories, cells, around=None)


def _found(rows: Rows, categories: Sequence[str]) -> list:
    return [(name, rows.by_category.get(name)) for name in categories]


def _speed(
    runs: Sequence[FinishedRun],
    rows: Mapping[int, Rows],
    categories: Sequence[str],
    baselines: Mapping[int, FinishedRun],
) -> Heat:
    cells = {}
    for i, run in enumerate(runs):
        plain = baselines.get(run.number)
        ours = rows[run.number].tokens_per_second
        theirs = rows[plain.number].tokens_per_second if plain is not None and plain.number in rows else {}
        for j, name in enumerate(categories):
            if name in ours and name in theirs:
                value = ours[name] / theirs[name]
                tip = f"{run.label}, {name}: {value:.3f} = {ours[name]:.1f} / {theirs[name]:.1f} tokens per second"
                cells[i, j] = HeatCell(value=value, text=f"{value:.2f}", tip=tip)
        if run.speedup_decode.value is not None:
            tip = f"{run.label}, speedup_decode: {charts.said(run.speedup_decode, unit='repeats')}"
            cells[i, len(categories)] = HeatCell(
                value=run.speedup_decode.value, text=f"{run.speedup_decode.value:.2f}", tip=tip
            )
    return _heat(runs, categories, cells, around=1.0)


def _heat(
    runs: Sequence[FinishedRun],
    categories: Sequence[str],
    cells: Mapping[tuple[int, int], HeatCell],
    *,
    around: float | None,
) -> Heat:
    return Heat(
        rows=tuple(run.label for run in runs),
        columns=(*categories, ALL),
        cells=cells,
        beside=tuple(f"n {run.num_steps}" for run in runs),
        around=around,
    )


def _dots(runs: Sequence[FinishedRun], rows: Mapping[int, Rows]) -> list[str]:
    measures = [(run, rows[run.number].by_category) for run in runs]
    tops = [one.high or one.value or 1 for _, found in measures for one in found.values()]
    high = max([*tops, *(run.tokens_per_step.value or 1 for run in runs)], default=1)
    return [
        figure(
            run.label,
            charts.by_category(found, overall=run.tokens_per_step, high=high, label=run.label, style=run.style),
            "n at the right: steps. Bars: 95 % over requests, where a category has several; "
            f"{run.num_requests} requests in all. Grey: fewer than {charts.FEW} steps. Dashed: the whole run.",
        )
        for run, found in measures
    ]
