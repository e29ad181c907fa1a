"""The run table as plain cells, and on the terminal; only the settings that differ between runs are columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from experiments.report.collect import FinishedRun, Found, Measure
from experiments.report.settings import differing
from experiments.table import NOTHING, lossless_text
from experiments.terminal import table_console
from specdec.metrics import DEFINITIONS

NUMERIC = ("n ", "tokens per step")
HASH_DIGITS = 8
DEFINED = ("tokens_per_step", "loop_token_share", "speedup", "speedup_decode")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: what it shows, what it is sorted by, the colour of a dot before it, and whether it is bold."""

    text: str
    sort: float | str
    style: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table without a form. ``numeric`` says of each column whether it is set to the right."""

    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]


def run_grid(runs: Sequence[FinishedRun]) -> Grid:
    """One row a run."""
    keys = differing([run.settings for run in runs])
    figures = (
        "tokens_per_step",
        "without loops",
        "n steps",
        "lossless",
        "loop_token_share",
        "speedup",
        "speedup_decode",
    )
    rows = []
    for run in runs:
        cells = [Cell(f"#{run.number}", run.number, run.style)]
        cells += [_setting(key, run.settings.get(key, NOTHING)) for key in keys]
        cells += [
            measured(run.tokens_per_step),
            measured(run.tokens_per_step_without_loops),
            Cell(str(run.tokens_per_step.n), run.tokens_per_step.n),
            Cell(lossless_text(run.lossless), lossless_text(run.lossless)),
            measured(run.loop_token_share),
            measured(run.speedup, digits=2),
            measured(run.speedup_decode, digits=2),
        ]
        rows.append(tuple(cells))
    numeric = tuple(all(_is_number(row[1 + i]) for row in rows) for i in range(len(keys)))
    names = tuple(key.removeprefix("drafter.") for key in keys)
    return Grid(
        headings=("run", *names, *figures),
        numeric=(False, *numeric, True, True, True, False, True, True, True),
        rows=tuple(rows),
    )


def text_grid(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Grid:
    """A table of texts; columns of counts and of tokens per step are set to the right."""
    cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
    return Grid(headings=headings, numeric=tuple(name.startswith(NUMERIC) for name in headings), rows=cells)


def measured(measure: Measure, *, digits: int = 3) -> Cell:
    """``value [low, high]``, sorted by the value; what was not observed comes last."""
    return Cell(interval(measure, digits=digits), float("-inf") if measure.value is None else measure.value)


def interval(measure: Measure, *, digits: int = 3) -> str:
    """``value [low, high]``; a dash for what was not observed."""
    if measure.value is None:
        return NOTHING
    text = f"{measure.value:.{digits}f}"
    if measure.low is None or measure.high is None:
        return text
    return f"{text} [{measure.low:.{digits}f}, {measure.high:.{digits}f}]"


def _setting(key: str, text: str) -> Cell:
    if key.endswith("_hash"):
        return Cell(text[:HASH_DIGITS], text)
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text, float("-inf") if text == NOTHING else text)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell.sort, float)


def show(found: Found) -> None:
    """Print the run table, the runs that are not in it, and what the figures mean."""
    console = table_console()
    if found.finished:
        console.print(_rich(run_grid(found.finished)))
        for run in found.finished:
            console.print(f"#{run.number}: {shown_path(run.path)}", markup=False, soft_wrap=True)
    for run in found.unfinished:
        console.print(f"{run.state}: {shown_path(run.path)} ({run.reason})", markup=False, soft_wrap=True)
    for name in DEFINED if found.finished else ():
        console.print(f"{name}: {DEFINITIONS[name]}", markup=False, soft_wrap=True)


def _rich(grid: Grid) -> Table:
    table = Table()
    for heading, numeric in zip(grid.headings, grid.numeric, strict=True):
        table.add_column(heading, justify="right" if numeric else "left")
    for row in grid.rows:
        table.add_row(*(escape(cell.text) for cell in row))
    return table


def shown_path(path: Path) -> str:
    """Relative to the working folder where it lies below that."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
