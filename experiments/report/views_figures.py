"""Views with a figure for each run: acceptance by position, accepted length, categories, and time per round."""

from collections.abc import Mapping, Sequence

from experiments.report import charts
from experiments.report.collect import PHASES, FinishedRun
from experiments.report.html import definitions, details, figure, figures, section, table
from experiments.report.rows import Rows
from experiments.report.tables import Cell, Grid, interval


def acceptance_view(runs: Sequence[FinishedRun]) -> str:
    """Survival and conditional acceptance by drafted position; nothing when no run drafted."""
    drawn = [
        figure(
            run.label,
            charts.acceptance(run.survival, run.conditional, label=run.label),
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


def accepted_view(runs: Sequence[FinishedRun]) -> str:
    """Histogram of accepted length; nothing when no run drafted."""
    drawn = [
        figure(
            run.label,
            charts.histogram(run.accepted, label=run.label),
            f"n = {sum(run.accepted)} steps. draft_acceptance_rate {interval(run.draft_acceptance_rate)}, "
            f"n = {run.draft_acceptance_rate.n} drafts.",
        )
        for run in runs
        if run.survival
    ]
    if not drawn:
        return ""
    return section(
        "accepted",
        "Accepted length",
        "How many drafts a step accepted, before any stop cut its output. Each step emits one token more: the bonus or "
        "the correction.",
        figures(drawn),
        definitions(("draft_acceptance_rate",)),
        single=len(drawn) == 1,
    )


def category_view(runs: Sequence[FinishedRun], rows: Mapping[int, Rows]) -> str:
    """Tokens per step by category of prompt, for runs that drafted and whose rows could be read."""
    drafted = [run for run in runs if run.survival and run.number in rows]
    chosen = [(run, rows[run.number].by_category) for run in drafted]
    tops = [one.high or one.value or 1 for _, measures in chosen for one in measures.values()]
    high = max([*tops, *(run.tokens_per_step.value or 1 for run in drafted)], default=1)
    note = "n at the right: steps. Bars: 95 % over requests, where a category has several"
    drawn = [
        figure(
            run.label,
            charts.by_category(measures, overall=run.tokens_per_step, high=high, label=run.label),
            f"{note}; {run.num_requests} requests in all.",
        )
        for run, measures in chosen
    ]
    if not drawn:
        return ""
    return section(
        "categories",
        "Tokens per step by category",
        f"What kind of text is drafted well. Grey: fewer than {charts.FEW} steps. The dashed line is the whole run.",
        figures(drawn),
        definitions(("tokens_per_step",)),
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
            Cell(run.label, run.number),
            *(Cell("-" if value is None else f"{value:.3f}", value or 0.0) for value in run.ms_per_round),
            _num_rounds(rows.get(run.number)),
        )
        for run in timed
    )
    grid = Grid(headings=headings, numeric=(False, *(True for _ in headings[1:])), rows=cells)
    drawing = charts.round_times([(run.label, run.ms_per_round) for run in timed], phases=PHASES)
    note = "Mean over the rounds that verified something; a round counts once, whatever its batch."
    numbers = details("Numbers in milliseconds; n: rounds", table(grid))
    return section(
        "time",
        "Time per round",
        "What a round costs: drafting, the target's verifying pass, and everything else.",
        figures([figure("Milliseconds a round by phase", drawing, note, numbers)]),
        single=True,
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
