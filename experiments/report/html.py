"""Pieces of the page that every view uses: figures, tables, definitions; all text is escaped here."""

from collections.abc import Sequence
from html import escape

from experiments.report.tables import Grid
from specdec.metrics import DEFINITIONS


def section(anchor: str, heading: str, lead: str, *parts: str, single: bool = False) -> str:
    """A part of the page; ``lead`` is plain text under its heading. Parts of a ``single`` figure share a line."""
    kind = ' class="single"' if single else ""
    head = f'<h2>{escape(heading)}</h2><p class="lead">{escape(lead)}</p>'
    return f'<section id="{anchor}"{kind}>{head}{"".join(parts)}</section>'


def figures(drawn: Sequence[str]) -> str:
    """Figures side by side as far as the screen is wide."""
    return f'<div class="figures">{"".join(drawn)}</div>'


def figure(heading: str, drawing: str, note: str, more: str = "") -> str:
    """A drawing with what it is of, and its count and remarks below; ``drawing`` and ``more`` are finished markup."""
    return f"<figure><h3>{escape(heading)}</h3>{drawing}<figcaption>{escape(note)}</figcaption>{more}</figure>"


def table(grid: Grid, *, style: str = "", sortable: bool = False) -> str:
    """A table in a frame that scrolls sideways on a narrow screen."""
    heads = "".join(
        f'<th scope="col"{_right(numeric)}>{_heading(name, sortable)}</th>'
        for name, numeric in zip(grid.headings, grid.numeric, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td{_right(numeric)} data-sort="{escape(str(cell.sort))}">{escape(cell.text)}</td>'
            for cell, numeric in zip(row, grid.numeric, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    kind = f' class="{style}{" sortable" if sortable else ""}"'
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table">'
        f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def details(heading: str, content: str, *, is_open: bool = False) -> str:
    """A part that can be folded; ``content`` is finished markup."""
    return f"<details{' open' if is_open else ''}><summary>{escape(heading)}</summary>{content}</details>"


def definitions(names: Sequence[str], *more: tuple[str, str]) -> str:
    """What the figures mean: metrics by name, and pairs of a word and its meaning."""
    pairs = [*((name, DEFINITIONS[name]) for name in names), *more]
    return '<dl class="definitions">' + "".join(f"<dt>{escape(n)}</dt><dd>{escape(w)}</dd>" for n, w in pairs) + "</dl>"


def _heading(name: str, sortable: bool) -> str:
    return f'<button type="button">{escape(name)}</button>' if sortable else escape(name)


def _right(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
