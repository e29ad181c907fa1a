"""Views over a sweep: speed-up against draft length, its heat maps, and draft cost against gain."""

from collections.abc import Sequence

from experiments.report.charts import said
from experiments.report.charts_heat import Heat, HeatCell, heat
from experiments.report.charts_sweep import Line, Spot, front, pareto, speedups
from experiments.report.collect import FinishedRun
from experiments.report.html import card, definitions, details, figure, figures, section, table
from experiments.report.settings import differing, named, panel_keys
from experiments.report.tables import Cell, Grid, interval, measured, text_grid
from experiments.report.theme import PLAIN

LENGTH = "drafter.num_draft_tokens"
MAX_PANELS = 9
AXES = {"sampling.temperature": "temperature", "engine.max_batch": "batch"}
DEFAULT_HEADING = "Speed-up over plain decoding"
Key = tuple[str, ...]


def speedup_view(runs: Sequence[FinishedRun]) -> str:
    """Speed-up against draft length, one line a drafter; nothing unless at least two runs have both."""
    measured_runs = [run for run in runs if run.num_draft_tokens is not None and run.speedup.value is not None]
    measured_runs = [run for run in measured_runs if run.drafter != PLAIN]
    if len(measured_runs) < 2:
        return ""
    keys = panel_keys([run.settings for run in measured_runs])
    panels = _grouped(measured_runs, keys)
    lengths = sorted({run.num_draft_tokens or 0 for run in measured_runs})
    high = max(run.speedup.high or run.speedup.value or 1 for run in measured_runs)
    drawn = []
    for group in sorted(panels.values(), key=len, reverse=True)[:MAX_PANELS]:
        heading = ", ".join(named(group[0].settings, keys)) or DEFAULT_HEADING
        label = "speed-up against draft length" + ("" if heading == DEFAULT_HEADING else f", {heading}")
        note = (
            f"n = {len(group)} runs: {_numbers(group)}. Bars: the range over timing repeats, where there are several."
        )
        drawn.append(figure(heading, speedups(_lines(group), lengths=lengths, high=high, label=label), note))
    rows = [
        (run.label, str(run.num_draft_tokens), interval(run.speedup, digits=2), str(run.speedup.n))
        for run in measured_runs
    ]
    numbers = table(text_grid(("run", "drafted", "speedup", "n repeats"), rows))
    left_out = len(panels) - len(drawn)
    return section(
        "speedup",
        "Speed-up against draft length",
        "Above the heavy line at 1.0 speculation pays; below it plain decoding is faster. One panel for each setting "
        "that differs between runs, all on the same axes."
        + (f" The first {MAX_PANELS} panels of {len(panels)}; the numbers have all." if left_out else ""),
        figures([*drawn, card("Numbers", numbers)], wide=True) if len(drawn) == 1 else figures(drawn),
        details("Numbers", numbers) if len(drawn) > 1 else "",
        definitions(("speedup",)),
    )


def grid_view(runs: Sequence[FinishedRun]) -> str:
    """Heat maps of speed-up over draft length and temperature, or batch; nothing unless both take two values."""
    drafted = [run for run in runs if run.drafter != PLAIN and run.num_draft_tokens is not None]
    drafted = [run for run in drafted if run.speedup.value is not None]
    drawn, num_panels = [], 0
    for axis, name in AXES.items():
        keys = tuple(
            key
            for key in differing([run.settings for run in drafted])
            if key not in (axis, LENGTH) and not key.startswith("env.")
        )
        for group in _grouped(drafted, keys).values():
            content = _heat(group, axis, name)
            if content is None:
                continue
            num_panels += 1
            if len(drawn) < MAX_PANELS:
                heading = ", ".join([group[0].drafter, *named(group[0].settings, [k for k in keys if k != "drafter"])])
                label = f"speed-up over draft length and {name}, {heading}"
                note = f"n = {len(content.cells)} runs. Grey with a dash: not measured."
                drawn.append(figure(heading, heat(content, label=label), note, wide=True))
    if not drawn:
        return ""
    more = f" The first {len(drawn)} of {num_panels} panels." if num_panels > len(drawn) else ""
    return section(
        "grid",
        "Where speculation pays",
        "Speed-up for each draft length and temperature or batch size. Green is faster than plain decoding, orange is "
        f"slower; the shade in the middle is 1.0.{more}",
        figures(drawn, wide=True),
        definitions(("speedup",)),
    )


def pareto_view(runs: Sequence[FinishedRun]) -> str:
    """Draft cost over verify cost against tokens per step; nothing unless at least two drafted runs were timed."""
    timed = [run for run in runs if run.survival and run.draft_cost is not None and run.tokens_per_step.value]
    if len(timed) < 2:
        return ""
    spots = {run.number: _spot(run) for run in timed}
    best = front(list(spots.values()))
    names = {run.style: run.drafter for run in timed}
    rows = tuple(
        (
            Cell(run.label, run.number, run.style),
            Cell(f"{spots[run.number].cost:.3f}", spots[run.number].cost),
            measured(run.tokens_per_step),
            Cell(str(run.tokens_per_step.n), run.tokens_per_step.n),
            Cell(f"{spots[run.number].predicted:.2f}", spots[run.number].predicted),
            measured(run.speedup_decode, digits=2),
            Cell("yes" if spots[run.number] in best else "", float(spots[run.number] in best)),
        )
        for run in timed
    )
    headings = ("run", "draft / verify", "tokens_per_step", "n steps", "predicted", "speedup_decode", "on the front")
    grid = Grid(headings=headings, numeric=(False, True, True, True, True, True, False), rows=rows)
    drawing = pareto(list(spots.values()), names=names, label="draft cost against tokens per step")
    note = (
        f"n = {len(timed)} runs. Thin bars: 95 % over requests. Ringed and joined: no other run drafts cheaper and "
        "gains more, plain decoding included. Dashed: equal predicted speed-up; the heavy line is 1.0."
    )
    return section(
        "pareto",
        "What a draft costs and brings",
        "To the right drafting takes more of a round, upwards a round yields more tokens: good runs lie to the upper "
        "left.",
        figures([figure("Tokens per step against relative draft cost", drawing, note, wide=True)], wide=True),
        details("Numbers", table(grid, sortable=True)),
        definitions(
            ("tokens_per_step", "speedup_decode"),
            ("draft / verify", "mean draft time of a round / mean verify time of a round"),
            (
                "predicted",
                "tokens_per_step / (1 + draft / verify): the speed-up if a verify pass takes as long as a plain pass "
                "and nothing else takes time",
            ),
        ),
    )


def _spot(run: FinishedRun) -> Spot:
    return Spot(
        name=run.label, mark=f"#{run.number}", style=run.style, cost=run.draft_cost or 0.0, gain=run.tokens_per_step
    )


def _grouped(runs: Sequence[FinishedRun], keys: Sequence[str]) -> dict[Key, list[FinishedRun]]:
    groups: dict[Key, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.settings.get(key, "") for key in keys), []).append(run)
    return groups


def _lines(runs: Sequence[FinishedRun]) -> list[Line]:
    """One line for each drafter, or for each of its settings when those differ within it."""
    lines = []
    for (drafter,), own in _grouped(runs, ("drafter",)).items():
        keys = [key for key in differing([run.settings for run in own]) if key.startswith("drafter.") and key != LENGTH]
        for dash, group in enumerate(_grouped(own, keys).values()):
            lines.append(
                Line(
                    name=", ".join([drafter, *named(group[0].settings, keys)]),
                    style=group[0].style,
                    dash=dash,
                    points=tuple(
                        sorted(((run.num_draft_tokens or 0, run.speedup) for run in group), key=lambda p: p[0])
                    ),
                )
            )
    return lines


def _heat(runs: Sequence[FinishedRun], axis: str, name: str) -> Heat | None:
    lengths = sorted({run.num_draft_tokens or 0 for run in runs})
    values = sorted({run.settings[axis] for run in runs if axis in run.settings}, key=float)
    if len(lengths) < 2 or len(values) < 2:
        return None
    cells = {}
    for run in runs:
        if axis in run.settings and run.speedup.value is not None:
            place = values.index(run.settings[axis]), lengths.index(run.num_draft_tokens or 0)
            tip = f"{run.label}: speed-up {said(run.speedup, unit='repeats')}"
            cells[place] = HeatCell(value=run.speedup.value, text=f"{run.speedup.value:.2f}", tip=tip)
    return Heat(
        rows=tuple(values),
        columns=tuple(map(str, lengths)),
        cells=cells,
        around=1.0,
        columns_are="drafted tokens a step",
        rows_are=name,
    )


def _numbers(runs: Sequence[FinishedRun]) -> str:
    shown = " ".join(f"#{run.number}" for run in runs[:12])
    return shown + (" and more" if len(runs) > 12 else "")
