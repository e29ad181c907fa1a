"""The report as one HTML text: style and script inside, nothing fetched from anywhere."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from experiments.report import theme
from experiments.report.collect import FinishedRun, Found
from experiments.report.glance import glance
from experiments.report.pairs import PairFigures, chosen_pair, named_pair, read_pair
from experiments.report.rows import Rows, RowsError, Texts, read_all, read_texts
from experiments.report.views_categories import category_view
from experiments.report.views_figures import acceptance_view, accepted_view, time_view
from experiments.report.views_pair import pair_view
from experiments.report.views_runs import losslessness_view, runs_view, unfinished_view
from experiments.report.views_sweep import grid_view, pareto_view, speedup_view
from experiments.report.views_tokens import MAX_RUNS, token_view

MARK = "specdec report"
ASSETS = Path(__file__).parents[1] / "data" / "report"
# Figures of their own have some runs that drafted, the best of each drafter first; tables and sweeps have all.
MAX_FIGURES = 9
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
NAMES = {
    "runs": "Runs",
    "speedup": "Speed-up",
    "grid": "Where it pays",
    "pareto": "Cost and gain",
    "time": "Time",
    "acceptance": "Acceptance",
    "accepted": "Accepted length",
    "categories": "Categories",
    "tokens": "Tokens",
    "pair": "Two runs",
    "lossless": "Losslessness",
    "unfinished": "Without figures",
}


def page(found: Found, *, pair: tuple[int, int] | None = None) -> str:
    """The whole report; ``pair`` are the numbers of two runs to compare, or the report chooses them."""
    notes: list[str] = []
    shown = chosen(found.finished)
    if len(shown) < len(found.finished):
        notes.append(
            f"Figures of single runs show {len(shown)} of {len(found.finished)} runs: of each drafter in turn the one "
            "with most tokens per step. Tables and views over the sweep have all."
        )
    rows = _rows(found.finished, notes)
    views = [
        runs_view(found.finished) if found.finished else "",
        speedup_view(found.finished),
        grid_view(found.finished),
        pareto_view(found.finished),
        time_view(shown, rows),
        acceptance_view(shown),
        accepted_view(shown, rows),
        category_view(found.finished, rows, chosen=shown),
        token_view(shown, _texts(shown, notes)),
        *map(pair_view, _pairs(found.finished, pair, notes)),
        losslessness_view(found.finished) if found.finished else "",
        unfinished_view(found.unfinished) if found.unfinished else "",
    ]
    return _document(_header(found, notes, views), views)


def chosen(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, ...]:
    """At most MAX_FIGURES runs, in their order: the best of each drafter, then the second of each, and so on."""
    by_drafter: dict[str, list[FinishedRun]] = {}
    for run in sorted(runs, key=lambda run: -(run.tokens_per_step.value or 0)):
        by_drafter.setdefault(run.drafter, []).append(run)
    ranked = sorted((place, run.number, run) for own in by_drafter.values() for place, run in enumerate(own))
    return tuple(sorted((run for _, _, run in ranked[:MAX_FIGURES]), key=lambda run: run.number))


def _rows(runs: Sequence[FinishedRun], notes: list[str]) -> dict[int, Rows]:
    """Sums of rows by number of the run; a run whose rows cannot be read gets a note instead."""
    read, refused = read_all([run.path for run in runs])
    notes += [f"{run.label}: {refused[run.path]}; it has no categories here." for run in runs if run.path in refused]
    return {run.number: read[run.path] for run in runs if run.path in read}


def _texts(runs: Sequence[FinishedRun], notes: list[str]) -> dict[int, Texts]:
    out = {}
    for run in [run for run in runs if run.survival][:MAX_RUNS]:
        try:
            out[run.number] = read_texts(run.path)
        except RowsError as error:
            notes.append(f"{run.label}: {error}; it has no tokens here.")
    return out


def _pairs(runs: Sequence[FinishedRun], numbers: tuple[int, int] | None, notes: list[str]) -> Iterator[PairFigures]:
    pair = chosen_pair(runs) if numbers is None else named_pair(runs, numbers)
    if pair is None:
        return
    try:
        yield read_pair(*pair)
    except RowsError as error:
        notes.append(f"{error}.")


def _header(found: Found, notes: Sequence[str], views: Sequence[str]) -> str:
    made = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    count = f"{len(found.finished)} finished, {len(found.unfinished)} without figures"
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in NAMES.items() if _has(views, anchor))
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return (
        f"<header><h1>Speculative decoding</h1><p>Run folders: {count}. Made {escape(made)}.</p>"
        f'{glance(found)}{remarks}<nav aria-label="parts">{links}</nav></header>'
    )


def _has(views: Sequence[str], anchor: str) -> bool:
    return any(view.startswith(f'<section id="{anchor}"') for view in views)


def _document(header: str, views: Sequence[str]) -> str:
    style = theme.style_sheet() + (ASSETS / "page.css").read_text(encoding="utf-8")
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MARK}">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{MARK}</title><style>{style}</style></head>'
        f"<body>{header}<main>{''.join(views)}</main><script>{script}</script></body></html>\n"
    )
