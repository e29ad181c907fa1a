"""Two runs side by side, of which one was imported from another engine: figures without a paired difference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.finished_run import UnusableRunError
from experiments.run_folder import SUMMARY, Status, read_json, status_of
from experiments.table import NOTHING, interval
from experiments.terminal import table_console
from specdec.metrics import DEFINITIONS, FORMULAS

BY_POSITION = ("survival", "conditional", "survival_fixed")
OTHERS = ("tokens_per_second",)
UNPAIRED = (
    "not paired: at least one run was imported and has no prompts. Prompts, sampling, hardware and engine may differ, "
    "so a difference says nothing of its cause"
)


def show(a: Path, b: Path) -> None:
    """Print the figures of two run folders; raises UnusableRunError for one that is not finished."""
    summaries = [_summary(folder) for folder in (a, b)]
    console = table_console(markup=False)
    for name, folder, summary in zip("AB", (a, b), summaries, strict=True):
        console.print(f"{name}: {folder} ({_source(summary)})", soft_wrap=True)
    console.print(UNPAIRED, soft_wrap=True)
    rows = list(_rows(summaries))
    table = Table(title="A and B, with 95 % intervals over requests where requests are known")
    for heading in ("metric", "A", "n", "B", "n"):
        table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in [*_notes(summaries), *_definitions(rows)]:
        console.print(line, soft_wrap=True)


def _summary(folder: Path) -> Mapping[str, Any]:
    if status_of(folder) is not Status.DONE:
        raise UnusableRunError(f"{folder} holds no finished run")
    try:
        return read_json(folder / SUMMARY)
    except (OSError, ValueError) as error:
        raise UnusableRunError(f"{folder / SUMMARY}: cannot be read: {error}") from None


def _source(summary: Mapping[str, Any]) -> str:
    imported = summary.get("imported")
    if imported is None:
        return "run here"
    return f"imported from {summary['mode']['source']}; {imported['how']}"


def _rows(summaries: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, ...]]:
    rows = []
    for name in (*FORMULAS, *OTHERS):
        rows += _row(name, [summary.get(name) for summary in summaries])
    for name in BY_POSITION:
        lists = [summary.get(name) or [] for summary in summaries]
        for position in range(max(map(len, lists))):
            at = [found[position] if position < len(found) else None for found in lists]
            rows += _row(f"{name}[{position + 1}]", at)
    return rows


def _row(name: str, metrics: Sequence[Mapping[str, Any] | None]) -> Sequence[tuple[str, ...]]:
    """One row; none when neither run knows the metric."""
    known = [metric for metric in metrics if metric is not None and metric["value"] is not None]
    if not known:
        return []
    cells = [name]
    for metric in metrics:
        is_known = metric is not None and metric["value"] is not None
        cells += [interval(metric), str(metric["n"] or NOTHING)] if is_known and metric else [NOTHING, NOTHING]
    return [tuple(cells)]


def _notes(summaries: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    lines = []
    for name, summary in zip("AB", summaries, strict=True):
        lines += [f"{name}: {note}" for note in summary.get("imported", {}).get("notes", [])]
    return lines


def _definitions(rows: Sequence[tuple[str, ...]]) -> Sequence[str]:
    names = dict.fromkeys(row[0].partition("[")[0] for row in rows)
    return [f"{name}: {DEFINITIONS[name]}" for name in names if name in DEFINITIONS]
