"""Rows of runs as the report needs them: figures summed inside DuckDB, and the steps of a few outputs; draws nothing.

A run may have very many rows. Only sums by request, and by proposed and accepted length, leave the database.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.report.collect import Measure
from experiments.run_folder import OUTPUTS
from experiments.step_files import step_sources
from specdec.bootstrap import Bootstrap
from specdec.errors import SpecDecError
from specdec.metrics import StepRow, Terms

if TYPE_CHECKING:
    import duckdb

MAX_OUTPUTS = 6
LIMITS = {"threads": 2, "memory_limit": "400MB", "preserve_insertion_order": False}
STEP_FIELDS = frozenset(spec.name for spec in fields(StepRow))
US_PER_S = 1e6
# A round's time counts once: each of its live requests bears an equal part.
BY_REQUEST = """
    SELECT filename, coalesce(nullif(category, ''), '(none)') AS category, count(*) AS num_steps,
           sum(emitted) AS emitted, sum((draft_us + verify_us + other_us) / greatest(num_live, 1)) AS us
    FROM steps GROUP BY filename, category, request_id, turn ORDER BY filename, category, request_id, turn"""
BY_LENGTH = "SELECT filename, proposed, accepted, count(*) FROM steps GROUP BY ALL"
# A round of one request is one row; only where several share rounds must they be told apart, which takes long.
ROUNDS = """
    SELECT filename, count(*) FROM steps GROUP BY filename HAVING max(num_live) = 1
    UNION ALL
    SELECT filename, count(DISTINCT round) FROM steps
    WHERE filename IN (SELECT filename FROM steps WHERE num_live > 1) GROUP BY filename"""


class RowsError(SpecDecError, ValueError):
    """The rows of a run cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One line of ``outputs.jsonl``, as far as the report needs it."""

    request_id: str
    turn: int
    category: str
    output_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What the report takes from the rows of one run.

    by_category       ``tokens_per_step`` of every category, in order of its name
    tokens_per_second of every category: emitted tokens over the time of their rounds; only categories that took time
    accepted          number of steps that accepted 0, 1, 2, ... drafts, by the number that they proposed
    """

    num_rounds: int = 0
    by_category: Mapping[str, Measure]
    tokens_per_second: Mapping[str, float]
    accepted: Mapping[int, tuple[int, ...]]


Texts = tuple[tuple[Output, tuple[StepRow, ...]], ...]


def read_rows(path: Path) -> Rows:
    """Sums of the rows of one run folder; raises RowsError when they cannot be read."""
    return _read([path])[path]


def read_all(paths: Sequence[Path]) -> tuple[dict[Path, Rows], dict[Path, str]]:
    """Sums of the rows of many run folders, and why those of the others cannot be read."""
    try:
        return _read(paths), {}
    except RowsError:
        pass  # one damaged file spoils a query over all: ask for each alone
    read: dict[Path, Rows] = {}
    refused = {}
    for path in paths:
        try:
            read[path] = read_rows(path)
        except RowsError as error:
            refused[path] = str(error)
    return read, refused


def read_texts(path: Path) -> Texts:
    """The first MAX_OUTPUTS outputs of a run folder, each with its steps in order; raises RowsError."""
    import duckdb  # here, since it is slow to import

    try:
        outputs = tuple(_output(record) for record in _first_lines(path / OUTPUTS))
        with _opened([path]) as connection:
            steps = _steps(connection, outputs)
    except (OSError, ValueError, KeyError, TypeError, duckdb.Error) as error:
        raise RowsError(f"its rows cannot be read ({_one_line(error)})") from None
    return tuple(
        (output, tuple(row for row in steps if (row.request_id, row.turn) == (output.request_id, output.turn)))
        for output in outputs
    )


def _read(paths: Sequence[Path]) -> dict[Path, Rows]:
    import duckdb  # here, since it is slow to import

    try:
        with _opened(paths) as connection:
            by_request = connection.execute(BY_REQUEST).fetchnumpy()
            lengths, rounds = (connection.execute(sql).fetchall() for sql in (BY_LENGTH, ROUNDS))
    except (OSError, duckdb.Error) as error:
        raise RowsError(f"its rows cannot be read ({_one_line(error)})") from None
    num_rounds = {Path(name).parent: num for name, num in rounds}
    histograms = _histograms(lengths)
    categories = _categories(by_request)
    return {
        path: Rows(
            num_rounds=num_rounds.get(path, 0),
            by_category={name: measure for name, (measure, _) in categories.get(path, {}).items()},
            tokens_per_second={name: rate for name, (_, rate) in categories.get(path, {}).items() if rate},
            accepted=histograms.get(path, {}),
        )
        for path in paths
    }


def _opened(paths: Sequence[Path]) -> "duckdb.DuckDBPyConnection":
    """A database in which ``steps`` are the rows of these folders."""
    import duckdb

    connection = duckdb.connect(config=LIMITS)
    connection.execute(f"CREATE VIEW steps AS {' UNION ALL BY NAME '.join(step_sources(paths))}")
    return connection


def _histograms(counted: Iterable[tuple[str, int, int, int]]) -> dict[Path, dict[int, tuple[int, ...]]]:
    found: dict[Path, dict[int, dict[int, int]]] = {}
    for name, proposed, accepted, num in counted:
        found.setdefault(Path(name).parent, {}).setdefault(proposed, {})[accepted] = num
    return {
        path: {
            proposed: tuple(counts.get(i, 0) for i in range(max(proposed, *counts) + 1))
            for proposed, counts in sorted(of_run.items())
        }
        for path, of_run in found.items()
    }


def _categories(columns: Mapping[str, np.ndarray]) -> dict[Path, dict[str, tuple[Measure, float]]]:
    """Tokens per step with its interval, and tokens per second, by run and category; requests lie side by side."""
    names, categories = (np.asarray(columns[name]).astype(str) for name in ("filename", "category"))
    found: dict[Path, dict[str, tuple[Measure, float]]] = {}
    if not len(names):
        return found
    changes = np.flatnonzero((names[1:] != names[:-1]) | (categories[1:] != categories[:-1])) + 1
    resamples: dict[int, Bootstrap] = {}
    for part in np.split(np.arange(len(names)), changes):
        size = len(part)
        if size not in resamples:
            resamples[size] = Bootstrap(size)
        emitted, num_steps, us = (columns[sum_][part].astype(np.float64) for sum_ in ("emitted", "num_steps", "us"))
        estimate = resamples[size].estimate(Terms(emitted, num_steps, np.arange(size)))
        low, high = (estimate.low, estimate.high) if size > 1 else (None, None)
        measure = Measure(value=estimate.value, low=low, high=high, n=estimate.n)
        rate = float(emitted.sum() / us.sum() * US_PER_S) if us.sum() > 0 else 0.0
        found.setdefault(Path(names[part[0]]).parent, {})[str(categories[part[0]])] = measure, rate
    return found


def _first_lines(path: Path) -> list[dict[str, Any]]:
    """The first MAX_OUTPUTS whole lines of a JSONL file."""
    records = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if len(records) == MAX_OUTPUTS or not line.endswith("\n"):
                break
            records.append(json.loads(line))
    return records


def _steps(connection: "duckdb.DuckDBPyConnection", outputs: Sequence[Output]) -> list[StepRow]:
    """The steps of ``outputs`` in order."""
    if not outputs:
        return []
    wanted = ", ".join("(?, ?)" for _ in outputs)
    values = [value for output in outputs for value in (output.request_id, output.turn)]
    found = connection.execute(f"SELECT * FROM steps WHERE (request_id, turn) IN ({wanted}) ORDER BY step", values)
    names = [column[0] for column in found.description]
    return [_step(dict(zip(names, row, strict=True))) for row in found.fetchall()]


def _step(record: Mapping[str, Any]) -> StepRow:
    return StepRow(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
            if name in STEP_FIELDS
        }
    )


def _output(record: Mapping[str, Any]) -> Output:
    return Output(
        request_id=str(record["request_id"]),
        turn=int(record["turn"]),
        category=str(record["category"]),
        output_ids=tuple(map(int, record["output_ids"])),
        finish_reason=str(record["finish_reason"]),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
