"""Pieces of the page that every view uses: figures, tables, definitions; all text is escaped here."""

from collections.abc import Sequence
from html import escape

from experiments.report.tables import Cell, Grid
from specdec.metrics import DEFINITIONS

LONG = 12
FILTER = (
    '<p class="filter"><label>Show rows with <input type="search" placeholder="part of any cell"></label> '
    '<span aria-live="polite"></span></p>'
)


def section(anchor: str, heading: str, lead: str, *parts: str, single: bool = False) -> str:
    """A part of the page; ``lead`` is plain text under its heading. Parts of a ``single`` figure share a line."""
    kind = ' class="single"' if single else ""
    head = f'<h2>{escape(heading)}</h2><p class="lead">{escape(lead)}</p>'
    return f'<section id="{anchor}"{kind}>{head}{"".join(parts)}</section>'


def figures(drawn: Sequence[str], *, wide: bool = False) -> str:
    """Figures side by side as far as the screen is wide; ``wide`` ones each as wide as they need."""
    return f'<div class="figures{" wide" if wide else ""}">{"".join(drawn)}</div>' if drawn else ""


def card(heading: str, content: str) -> str:
    """A frame like that of a figure around finished markup."""
    return f'<div class="card"><h3>{escape(heading)}</h3>{content}</div>'


def figure(heading: str, drawing: str, note: str, more: str = "", *, wide: bool = False) -> str:
    """A drawing with what it is of, and its count and remarks below; ``drawing`` and ``more`` are finished markup.

    A ``wide`` drawing keeps its size and scrolls sideways on a narrow screen.
    """
    kind = ' class="wide"' if wide else ""
    if wide:
        drawing = f'<div class="scroll" tabindex="0" role="region" aria-label="drawing">{drawing}</div>'
    return f"<figure{kind}><h3>{escape(heading)}</h3>{drawing}<figcaption>{escape(note)}</figcaption>{more}</figure>"


def table(grid: Grid, *, style: str = "", sortable: bool = False) -> str:
    """A table in a frame that scrolls sideways on a narrow screen, and a long one downwards as well."""
    heads = "".join(
        f'<th scope="col"{_right(numeric)}>{_heading(name, sortable)}</th>'
        for name, numeric in zip(grid.headings, grid.numeric, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td{_right(numeric)} data-sort="{escape(str(cell.sort))}">{_content(cell)}</td>'
            for cell, numeric in zip(row, grid.numeric, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    kind = f' class="{style}{" sortable" if sortable else ""}"'
    is_long = len(grid.rows) > LONG
    return (
        f"{FILTER if sortable and is_long else ''}"
        f'<div class="scroll{" long" if is_long else ""}" tabindex="0" role="region" aria-label="table">'
        f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def details(heading: str, content: str, *, is_open: bool = False) -> str:
    """A part that can be folded; ``content`` is finished markup."""
    return f"<details{' open' if is_open else ''}><summary>{escape(heading)}</summary>{content}</details>"


def definitions(names: Sequence[str], *more: tuple[str, str]) -> str:
    """What the figures mean: metrics by name, and pairs of a word and its meaning."""
    pairs = [*((name, DEFINITIONS[name]) for name in names), *more]
    return '<dl class="definitions">' + "".join(f"<dt>{escape(n)}</dt><dd>{escape(w)}</dd>" for n, w in pairs) + "</dl>"


def _content(cell: Cell) -> str:
    dot = f'<span class="dot {cell.style}"></span>' if cell.style else ""
    return f"{dot}<strong>{escape(cell.text)}</strong>" if cell.strong else f"{dot}{escape(cell.text)}"


def _heading(name: str, sortable: bool) -> str:
    return f'<button type="button">{escape(name)}</button>' if sortable else escape(name)


def _right(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
