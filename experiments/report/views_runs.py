"""Views over all runs: the run table, exactness, runs without figures, and speed-up against draft length."""

from collections.abc import Sequence

from experiments.report import charts
from experiments.report.collect import FinishedRun, Measure, UnfinishedRun
from experiments.report.html import definitions, details, figure, figures, section, table
from experiments.report.settings import differing, label_keys, named
from experiments.report.tables import Cell, Grid, interval, run_grid, shown_path
from experiments.table import lossless_text, mode_text

MAX_LINES = 10
MAX_NUMBERS = 4


def runs_view(runs: Sequence[FinishedRun]) -> str:
    """Every finished run in one sortable table."""
    paths = _grid(("run", "folder"), [(f"#{run.number}", shown_path(run.path)) for run in runs])
    return section(
        "runs",
        "Runs",
        "Only the settings that differ are columns; press a heading to sort. In brackets: a 95 % interval, from "
        "resampling the requests; of a speed-up, the range over the timing repeats.",
        table(run_grid(runs), style="runs", sortable=True),
        definitions(
            ("tokens_per_step", "loop_token_share", "speedup", "speedup_decode"),
            ("without loops", "tokens_per_step over steps that emitted no token of a loop"),
            ("n steps", "verify steps, the denominator of tokens_per_step"),
            ("lossless", "whether the output is that of plain decoding; how it was judged stands under Losslessness"),
        ),
        details("Folders of the runs", table(paths)),
    )


def losslessness_view(runs: Sequence[FinishedRun]) -> str:
    """Whether each run is exact, by what judgement, and in which mode it ran."""
    rows = [
        (
            run.label,
            lossless_text(run.lossless),
            run.lossless_how,
            str(run.num_requests),
            "yes" if run.repeats_agree else "no",
            "; ".join(run.violated_identities) or "hold",
            mode_text(run.mode),
        )
        for run in runs
    ]
    headings = ("run", "lossless", "how it was judged", "n requests", "repeats agree", "identities", "mode that ran")
    return section(
        "lossless",
        "Losslessness",
        "Speculation must not change the text. This is what each run claims, and the evidence for it.",
        table(_grid(headings, rows), style="wrapped"),
        definitions(
            (),
            ("repeats agree", "whether every timing repeat produced the same tokens"),
            ("identities", "sums that must hold in the rows, such as tokens = 1 + emitted, per request"),
        ),
    )


def unfinished_view(runs: Sequence[UnfinishedRun]) -> str:
    """Run folders that have no figures, and why."""
    rows = [(shown_path(run.path), run.state, run.reason) for run in runs]
    return section(
        "unfinished",
        "Runs without figures",
        f"{len(runs)} more run folders were found; they are in no table and no figure.",
        table(_grid(("folder", "state", "reason"), rows), style="wrapped"),
    )


def speedup_view(runs: Sequence[FinishedRun]) -> str:
    """Speed-up against draft length; nothing unless at least two runs have both."""
    lines = _lines(runs)
    points = [(name, at, one) for name, line in lines.items() for at, one in line]
    if len(points) < 2:
        return ""
    rows = [(name, str(at), interval(one, digits=2), str(one.n)) for name, at, one in points]
    numbers = table(_grid(("drafter", "drafted", "speedup", "n repeats"), rows))
    drawn = dict(list(lines.items())[:MAX_LINES])
    drawing = charts.speedups(drawn)
    note = f"n = {len(points)} runs. Bars: the range over timing repeats, where there are several."
    if len(drawn) < len(lines):
        note += f" The first {len(drawn)} of {len(lines)} lines; the numbers have all."
    return section(
        "speedup",
        "Speed-up against draft length",
        "Above the heavy line at 1.0 speculation pays; below it plain decoding is faster.",
        figures([figure("Speed-up over plain decoding", drawing, note, details("Numbers", numbers))]),
        definitions(("speedup",)),
        single=True,
    )


def _lines(runs: Sequence[FinishedRun]) -> dict[str, list[tuple[int, Measure]]]:
    """Points by drafter and whatever else differs but for the draft length; a line names its runs."""
    everything = [run.settings for run in runs]
    keys = [key for key in differing(everything) if key != "drafter.num_draft_tokens"]
    groups: dict[tuple[str | None, ...], list[FinishedRun]] = {}
    for run in runs:
        if run.num_draft_tokens is not None and run.speedup.value is not None:
            groups.setdefault((run.drafter, *(run.settings.get(key) for key in keys)), []).append(run)
    return {
        ", ".join([group[0].drafter, *named(group[0].settings, label_keys(everything)), _numbers(group)]): sorted(
            [(run.num_draft_tokens or 0, run.speedup) for run in group], key=lambda point: point[0]
        )
        for group in groups.values()
    }


def _numbers(runs: Sequence[FinishedRun]) -> str:
    numbers = " ".join(f"#{run.number}" for run in runs[:MAX_NUMBERS])
    return numbers + (" and more" if len(runs) > MAX_NUMBERS else "")


def _grid(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Grid:
    cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
    return Grid(headings=headings, numeric=tuple(name.startswith("n ") for name in headings), rows=cells)
