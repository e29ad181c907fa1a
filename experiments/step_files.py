"""Step files: where the step rows of a run lie and how DuckDB reads those of many runs; computes no metric."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.compact import step_columns
from experiments.run_folder import PARQUET, STEPS, Status, status_of

PARQUET_END = b"PAR1"
UNITED = "union_by_name = true, filename = true"


def step_sources(runs: Sequence[Path]) -> list[str]:
    """Queries that together give every step row of ``runs``; the column ``filename`` names the file of a row.

    The rows of a finished run come from ``steps.parquet``, those of any other from the whole lines of ``steps.jsonl``.
    """
    packed = [run / PARQUET for run in runs if is_packed(run)]
    loose = [run / STEPS for run in runs if not is_packed(run) and has_content(run / STEPS)]
    parts = [json_lines(loose, step_columns())]
    if packed:
        parts.append(f"SELECT * FROM read_parquet({quoted(packed)}, {UNITED})")
    return parts


def json_lines(paths: Sequence[Path], columns: Mapping[str, str]) -> str:
    """Rows of JSONL files; a torn line becomes a row without any value, which is left out."""
    if not paths:
        empty = ", ".join(f"NULL::{kind} AS {name}" for name, kind in {**columns, "filename": "VARCHAR"}.items())
        return f"SELECT {empty} WHERE false"
    return (
        f"SELECT * FROM read_json({quoted(paths)}, format = 'newline_delimited', columns = {dict(columns)}, "
        "ignore_errors = true, filename = true) WHERE request_id IS NOT NULL"
    )


def is_packed(run: Path) -> bool:
    """Whether the rows are in a whole Parquet file of this very attempt."""
    path = run / PARQUET
    if not path.exists() or status_of(run) is not Status.DONE:
        return False
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(PARQUET_END)))
        return file.read() == PARQUET_END


def has_content(path: Path) -> bool:
    """Whether the file is there and not empty."""
    return path.exists() and path.stat().st_size > 0


def quoted(paths: Sequence[Path]) -> str:
    """A list of file names as SQL."""
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"
