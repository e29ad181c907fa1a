"""steps.parquet: the rows of a run in one column file; what is in it is in ``steps.jsonl``, too."""

import os
import sys
from dataclasses import fields
from pathlib import Path

from experiments.run_folder import PARQUET, STEPS
from specdec.step_row import SCHEMA_VERSION, StepRow

KINDS = {
    "int": "BIGINT",
    "str": "VARCHAR",
    "bool": "BOOLEAN",
    "float": "DOUBLE",
    "tuple[int, ...]": "BIGINT[]",
    "tuple[float, ...]": "DOUBLE[]",
}


def step_columns() -> dict[str, str]:
    """DuckDB's type of every field of a step row, the same in every file: an empty list has one, too."""
    return {spec.name: KINDS[_kind(spec.type).removesuffix(" | None")] for spec in fields(StepRow)}


def _kind(annotation: object) -> str:
    return annotation.__name__ if annotation in (int, str, bool, float) else str(annotation)


def compact(folder: Path) -> Path | None:
    """Write ``steps.parquet`` beside ``steps.jsonl`` in one step; None without rows, and with a warning if it fails.

    A torn line is left out. The file's metadata and every row say the schema version.
    """
    rows = folder / STEPS
    if not rows.stat().st_size:
        return None
    # Imported here, since it is slow to import.
    import duckdb

    parquet, temporary = folder / PARQUET, folder / f".{PARQUET}.{os.getpid()}"
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute(
                f"COPY (SELECT * FROM read_json($rows, format = 'newline_delimited', columns = {step_columns()}, "
                "ignore_errors = true) WHERE request_id IS NOT NULL) TO "
                f"'{_quoted(temporary)}' (FORMAT parquet, KV_METADATA {{schema_version: '{SCHEMA_VERSION}'}})",
                {"rows": str(rows)},
            )
        os.replace(temporary, parquet)
    except (duckdb.Error, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"warning: {parquet} cannot be written: {reason} (the rows are in {STEPS})", file=sys.stderr)
        return None
    finally:
        temporary.unlink(missing_ok=True)
    return parquet


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
