"""steps.parquet: the rows of a run in one column file, for those who have DuckDB (the ``report`` extra)."""

from importlib.util import find_spec
from pathlib import Path

from experiments.run_folder import STEPS

PARQUET = "steps.parquet"


def compact(folder: Path) -> Path | None:
    """Write ``steps.parquet`` beside ``steps.jsonl``; None without DuckDB or without rows."""
    rows = folder / STEPS
    if find_spec("duckdb") is None or not rows.stat().st_size:
        return None
    import duckdb  # optional, and slow to import

    parquet = folder / PARQUET
    with duckdb.connect() as connection:
        table = connection.read_json(str(rows), format="newline_delimited", sample_size=-1)
        table.write_parquet(str(parquet))
    return parquet
