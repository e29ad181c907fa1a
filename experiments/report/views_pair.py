"""The view of two runs on the same prompts: metrics with paired intervals, and the prompts that differ most."""

from math import isnan

from experiments.paired import DETECTABLE, Difference
from experiments.report.charts_pair import dumbbells, scatter
from experiments.report.html import card, definitions, figure, figures, section, table
from experiments.report.pairs import PairFigures
from experiments.report.settings import unlike
from experiments.report.tables import Cell, Grid, text_grid
from specdec.bootstrap import Estimate

NOTHING = "-"
SAME_COLOUR = ("s1", "s2")


def pair_view(pair: PairFigures) -> str:
    """B against A, request by request."""
    old, new = pair.old, pair.new
    styles = (old.style, new.style) if old.style != new.style else SAME_COLOUR
    drawn = []
    if pair.requests:
        note = (
            f"n = {len(pair.requests)} requests. Above the dashed line B needs fewer steps. Coloured by the run "
            "that is ahead; grey: equal."
        )
        drawing = scatter(pair.requests, styles=styles, label="tokens per step of each request in two runs")
        drawn.append(figure("Every request", drawing, note))
    if pair.changed:
        drawing = dumbbells([one.both for one in pair.changed], styles=styles, label="prompts that differ most")
        note = f"The {len(pair.changed)} of {len(pair.requests)} requests that differ most; n steps in the table below."
        drawn.append(figure("Prompts that differ most", drawing, note))
    settings = ", ".join(_setting(pair, key) for key in unlike(old.settings, new.settings)) or "nothing"
    outputs = f"{pair.num_same} of {pair.num_pairs} outputs are the same, token for token."
    return section(
        "pair",
        "Two runs on the same prompts",
        f"A is {old.label}; B is {new.label}. What differs: {settings}. {outputs} "
        "Another pair: report FOLDER pair=A,B with the numbers of two runs.",
        figures(drawn),
        card("Metrics", table(_metrics(pair))),
        card("Prompts that differ most", table(_prompts(pair), style="wrapped")) if pair.changed else "",
        definitions(
            tuple(dict.fromkeys(one.name.partition("[")[0] for one in pair.differences)),
            ("B - A", "with a 95 % interval from resampling pairs of requests; bold where it excludes 0"),
            ("detectable", DETECTABLE),
        ),
    )


def _setting(pair: PairFigures, key: str) -> str:
    values = [run.settings.get(key, NOTHING) for run in (pair.old, pair.new)]
    return f"{key} {values[0]} -> {values[1]}"


def _metrics(pair: PairFigures) -> Grid:
    headings = ("metric", "A", "n", "B", "n", "B - A", "detectable", "n pairs")
    rows = tuple(_row(one) for one in pair.differences)
    return Grid(headings=headings, numeric=(False, *(True for _ in headings[1:])), rows=rows)


def _row(one: Difference) -> tuple[Cell, ...]:
    clear = one.change.low > 0 or one.change.high < 0
    return (
        Cell(one.name, one.name),
        _number(one.old.value),
        Cell(str(one.old.n), one.old.n),
        _number(one.new.value),
        Cell(str(one.new.n), one.new.n),
        Cell(_change(one.change), 0.0 if isnan(one.change.value) else one.change.value, strong=clear),
        _number(one.detectable),
        Cell(str(one.change.n), one.change.n),
    )


def _prompts(pair: PairFigures) -> Grid:
    return text_grid(
        ("prompt", "category", "n steps A", "n steps B", "tokens per step A", "tokens per step B", "outputs"),
        [
            (
                one.both.name,
                one.category or NOTHING,
                str(one.both.num_steps[0]),
                str(one.both.num_steps[1]),
                f"{one.both.old:.3f}",
                f"{one.both.new:.3f}",
                one.where,
            )
            for one in pair.changed
        ],
    )


def _number(value: float) -> Cell:
    return Cell(NOTHING, float("-inf")) if isnan(value) else Cell(f"{value:.3f}", value)


def _change(change: Estimate) -> str:
    if isnan(change.value):
        return NOTHING
    span = "" if isnan(change.low) else f" [{change.low:+.3f}, {change.high:+.3f}]"
    return f"{change.value:+.3f}{span}"
