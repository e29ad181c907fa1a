"""The report as one HTML text: style and script inside, nothing fetched from anywhere."""

from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from experiments.report.collect import FinishedRun, Found
from experiments.report.rows import Rows, RowsError, read_rows
from experiments.report.views_figures import acceptance_view, accepted_view, category_view, time_view
from experiments.report.views_runs import losslessness_view, runs_view, speedup_view, unfinished_view
from experiments.report.views_tokens import token_view

MARK = "specdec report"
ASSETS = Path(__file__).parents[1] / "data" / "report"
# Figures of their own have the runs that drafted, plain decoding comes after them; the table has all.
MAX_FIGURES = 9
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
NAMES = {
    "runs": "Runs",
    "speedup": "Speed-up",
    "time": "Time",
    "acceptance": "Acceptance",
    "accepted": "Accepted length",
    "categories": "Categories",
    "tokens": "Tokens",
    "lossless": "Losslessness",
    "unfinished": "Without figures",
}


def page(found: Found) -> str:
    """The whole report."""
    notes: list[str] = []
    shown = found.finished[:MAX_FIGURES]
    if len(shown) < len(found.finished):
        notes.append(f"Figures show the first {len(shown)} of {len(found.finished)} runs; the tables show all.")
    rows = _rows(shown, notes)
    views = [
        runs_view(found.finished) if found.finished else "",
        speedup_view(found.finished),
        time_view(shown, rows),
        acceptance_view(shown),
        accepted_view(shown),
        category_view(shown, rows),
        token_view(shown, rows),
        losslessness_view(found.finished) if found.finished else "",
        unfinished_view(found.unfinished) if found.unfinished else "",
    ]
    return _document(_header(found, notes, views), views)


def _rows(runs: Sequence[FinishedRun], notes: list[str]) -> dict[int, Rows]:
    """Rows by number of the run; a run whose rows cannot be read gets a note instead."""
    out = {}
    for run in runs:
        try:
            out[run.number] = read_rows(run.path)
        except RowsError as error:
            notes.append(f"{run.label}: {error}; it has no categories and no tokens here.")
    return out


def _header(found: Found, notes: Sequence[str], views: Sequence[str]) -> str:
    made = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    count = f"{len(found.finished)} finished, {len(found.unfinished)} without figures"
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in NAMES.items() if _has(views, anchor))
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return (
        f"<header><h1>Speculative decoding</h1><p>Run folders: {count}. Made {escape(made)}.</p>{remarks}"
        f'<nav aria-label="parts">{links}</nav></header>'
    )


def _has(views: Sequence[str], anchor: str) -> bool:
    return any(view.startswith(f'<section id="{anchor}"') for view in views)


def _document(header: str, views: Sequence[str]) -> str:
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MARK}">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{MARK}</title><style>{style}</style></head>'
        f"<body>{header}<main>{''.join(views)}</main><script>{script}</script></body></html>\n"
    )
