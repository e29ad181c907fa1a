"""Views over all runs as tables: what they measured, whether they are exact, and which have no figures."""

from collections.abc import Sequence

from experiments.report.collect import FinishedRun, UnfinishedRun
from experiments.report.html import definitions, details, section, table
from experiments.report.tables import Cell, Grid, run_grid, shown_path, text_grid
from experiments.table import lossless_text, mode_text

VERDICTS = {
    True: ("good", "the text is that of plain decoding"),
    False: ("bad", "the text may differ"),
    None: ("few", "not compared"),
}


def runs_view(runs: Sequence[FinishedRun]) -> str:
    """Every finished run in one sortable table."""
    paths = text_grid(("run", "folder"), [(run.label, shown_path(run.path)) for run in runs])
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
        _remarks(runs),
    )


def losslessness_view(runs: Sequence[FinishedRun]) -> str:
    """Whether each run is exact, by what judgement, and in which mode it ran."""
    rows = tuple(
        (
            Cell(run.label, run.number, run.style),
            Cell(lossless_text(run.lossless), lossless_text(run.lossless), VERDICTS[run.lossless][0]),
            *map(_text, (run.lossless_how,)),
            Cell(str(run.num_requests), run.num_requests),
            _text("yes" if run.repeats_agree else "no"),
            _text("; ".join(run.violated_identities) or "hold"),
            _text(mode_text(run.mode)),
        )
        for run in runs
    )
    headings = ("run", "lossless", "how it was judged", "n requests", "repeats agree", "identities", "mode that ran")
    grid = Grid(headings=headings, numeric=tuple(name.startswith("n ") for name in headings), rows=rows)
    return section(
        "lossless",
        "Losslessness",
        f"Speculation must not change the text. What each run claims, and the evidence for it. {_counted(runs)}",
        table(grid, style="wrapped", sortable=True),
        definitions(
            (),
            (
                "lossless",
                "yes: identical to plain decoding, token for token, or by a proven rule; no: a lossy rule",
            ),
            ("repeats agree", "whether every timing repeat produced the same tokens"),
            ("identities", "sums that must hold in the rows, such as tokens = 1 + emitted, per request"),
        ),
    )


def _counted(runs: Sequence[FinishedRun]) -> str:
    counts = [(words, sum(run.lossless is verdict for run in runs)) for verdict, (_, words) in VERDICTS.items()]
    return f"Of {len(runs)} runs: {'; '.join(f'{num} {words}' for words, num in counts if num)}."


def _text(text: str) -> Cell:
    return Cell(text, text)


def unfinished_view(runs: Sequence[UnfinishedRun]) -> str:
    """Run folders that have no figures, and why."""
    rows = [(shown_path(run.path), run.state, run.reason) for run in runs]
    return section(
        "unfinished",
        "Runs without figures",
        f"{len(runs)} more run folders were found; they are in no table and no figure.",
        table(text_grid(("folder", "state", "reason"), rows), style="wrapped"),
    )


def _remarks(runs: Sequence[FinishedRun]) -> str:
    rows = [(run.label, remark) for run in runs for remark in run.remarks]
    return details("Remarks", table(text_grid(("run", "remark"), rows), style="wrapped"), is_open=True) if rows else ""
