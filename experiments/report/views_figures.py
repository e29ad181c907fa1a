"""Views with a figure for each run: acceptance by position, accepted length, and time per round."""

from collections.abc import Mapping, Sequence

from experiments.report import charts
from experiments.report.charts_heat import Heat, HeatCell, heat
from experiments.report.collect import PHASES, FinishedRun
from experiments.report.html import card, definitions, details, figure, figures, section, table
from experiments.report.rows import Rows
from experiments.report.tables import Cell, Grid, interval


def acceptance_view(runs: Sequence[FinishedRun]) -> str:
    """Survival and conditional acceptance by drafted position; nothing when no run drafted."""
    drawn = [
        figure(
            run.label,
            charts.acceptance(run.survival, run.conditional, label=run.label, style=run.style),
            f"n under a position: steps that proposed it, of {run.num_steps}.",
            details("Numbers", table(_positions(run))),
        )
        for run in runs
        if run.survival
    ]
    if not drawn:
        return ""
    return section(
        "acceptance",
        "Acceptance by position",
        "How far into a draft the target agrees. Bars and bands: 95 % over requests. Grey: seen fewer than "
        f"{charts.FEW} times, too few to lean on.",
        figures(drawn),
        definitions(("survival", "conditional")),
        single=len(drawn) == 1,
    )


def accepted_view(runs: Sequence[FinishedRun], rows: Mapping[int, Rows]) -> str:
    """Histogram of accepted length, also by proposed length where that varied; nothing when no run drafted."""
    drawn = [
        figure(
            run.label,
            charts.histogram(run.accepted, label=run.label, style=run.style),
            f"n = {sum(run.accepted)} steps. draft_acceptance_rate {interval(run.draft_acceptance_rate)}, "
            f"n = {run.draft_acceptance_rate.n} drafts.",
        )
        for run in runs
        if run.survival and sum(run.accepted)
    ]
    lengths = [
        figure(
            f"{run.label}: by proposed length",
            heat(by_proposed, label=f"accepted length by proposed length, {run.label}", cell=52),
            "Each row: of the steps that proposed so many drafts, the share that accepted 0, 1, 2, ... of them. At the "
            "right: n steps of the row.",
            wide=True,
        )
        for run in runs
        if run.number in rows and (by_proposed := _by_proposed(rows[run.number].accepted)) is not None
    ]
    if not drawn:
        return ""
    return section(
        "accepted",
        "Accepted length",
        "How many drafts a step accepted, before any stop cut its output. Each step emits one token more: the bonus or "
        "the correction.",
        figures(drawn),
        figures(lengths, wide=True),
        definitions(("draft_acceptance_rate",)),
        single=len(drawn) == 1,
    )


def time_view(runs: Sequence[FinishedRun], rows: Mapping[int, Rows]) -> str:
    """Mean time of a round by phase, one bar a run."""
    timed = [run for run in runs if any(run.ms_per_round)]
    if not timed:
        return ""
    headings = ("run", *PHASES, "n")
    cells = tuple(
        (
            Cell(run.label, run.number, run.style),
            *(Cell("-" if value is None else f"{value:.3f}", value or 0.0) for value in run.ms_per_round),
            _num_rounds(rows.get(run.number)),
        )
        for run in timed
    )
    grid = Grid(headings=headings, numeric=(False, *(True for _ in headings[1:])), rows=cells)
    drawing = charts.round_times([(run.label, run.ms_per_round) for run in timed], phases=PHASES)
    note = "Mean over rounds; a round counts once, whatever its batch. n: rounds, in the table."
    return section(
        "time",
        "Time per round",
        "What a round costs: drafting, the target's verifying pass, and everything else.",
        figures(
            [figure("Milliseconds by phase", drawing, note), card("Milliseconds; n: rounds", table(grid))], wide=True
        ),
        definitions((), ("time of a round", "draft, verify and other; of rounds that verified something")),
    )


def _by_proposed(accepted: Mapping[int, Sequence[int]]) -> Heat | None:
    """Shares of accepted lengths, a row for each proposed length; None unless several lengths were proposed often."""
    often = {proposed: counts for proposed, counts in accepted.items() if sum(counts) >= charts.FEW}
    if len([proposed for proposed in often if proposed]) < 2:
        return None
    cells = {}
    for i, (proposed, counts) in enumerate(often.items()):
        total = sum(counts)
        for j, num in enumerate(counts):
            tip = f"{proposed} proposed, {j} accepted: {num} of {total} steps ({num / total:.1%})"
            cells[i, j] = HeatCell(value=num / total, text=f"{num / total:.0%}", tip=tip)
    return Heat(
        rows=tuple(map(str, often)),
        columns=tuple(map(str, range(max(map(len, often.values()))))),
        cells=cells,
        beside=tuple(f"n {sum(counts)}" for counts in often.values()),
        columns_are="drafts accepted",
        rows_are="proposed",
    )


def _num_rounds(rows: Rows | None) -> Cell:
    return Cell("not read", 0.0) if rows is None else Cell(str(rows.num_rounds), rows.num_rounds)


def _positions(run: FinishedRun) -> Grid:
    rows = tuple(
        (
            Cell(str(position), position),
            Cell(interval(survival), position),
            Cell(str(survival.n), survival.n),
            Cell(interval(conditional), position),
            Cell(str(conditional.n), conditional.n),
        )
        for position, (survival, conditional) in enumerate(zip(run.survival, run.conditional, strict=True), start=1)
    )
    headings = ("position", "survival", "n", "conditional", "n")
    return Grid(headings=headings, numeric=(True,) * len(headings), rows=rows)
