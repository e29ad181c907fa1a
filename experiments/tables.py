"""Tables: every row of many runs as tables of one DuckDB connection; computes no metric and changes no folder.

steps         rows of steps.parquet, or of steps.jsonl while a run goes on
outputs       rows of outputs.jsonl
summaries     summary.json, metrics as structures: tokens_per_step.value
environments  env.json
statuses      status.json: status (died: running, and its process on this machine is gone), started, ended, error
settings      config.resolved.yaml: one row a setting, with its full key

The first column of each is ``run``, the folder.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.report.collect import run_folders
from experiments.run_folder import CONFIG, ENVIRONMENT, OUTPUTS, STATUS, SUMMARY, Status, is_abandoned, status_of
from experiments.step_files import UNITED, has_content, json_lines, quoted, step_sources
from specdec.errors import ConfigError, SpecDecError
from specdec.step_row import SCHEMA_VERSION

if TYPE_CHECKING:
    import duckdb

OUTPUT_COLUMNS = {
    "schema_version": "BIGINT",
    "request_id": "VARCHAR",
    "turn": "BIGINT",
    "category": "VARCHAR",
    "prompt_ids": "BIGINT[]",
    "output_ids": "BIGINT[]",
    "text": "VARCHAR",
    "finish_reason": "VARCHAR",
    "num_steps": "BIGINT",
    "num_preemptions": "BIGINT",
    "first_token_us": "DOUBLE",
    "total_us": "DOUBLE",
}
WHOLE = {"summaries": SUMMARY, "environments": ENVIRONMENT, "statuses": STATUS}
NAMES = ("steps", "outputs", *WHOLE, "settings")
RUN = "regexp_replace(filename, '/[^/]*$', '') AS run"
Answer = TypeVar("Answer")


class QueryError(SpecDecError, ValueError):
    """A question cannot be answered."""


class Tables:
    """Every run below some folders, open for questions; enter it, and leave it to let the files go."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Find the runs; raises ConfigError when there are none."""
        found = sorted({path.resolve() for folder in folders for path in run_folders(folder)})
        if not found:
            raise ConfigError(f"there is no run folder below {', '.join(map(str, folders))}")
        self.runs = tuple(found)

    def __enter__(self) -> "Tables":
        # Imported here, since --help must not wait for it.
        import duckdb

        self._connection = duckdb.connect()
        try:
            for name, source in self._sources().items():
                self._connection.execute(f"CREATE VIEW {name} AS {source}")
            self._add_settings()
        except duckdb.Error as error:
            raise QueryError(_one_line(error)) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self, sql: str) -> list[tuple]:
        """The answer to a question in DuckDB's SQL; raises QueryError."""
        answer = self._ask(sql, lambda found: found.fetchall())
        return [] if answer is None else answer

    def text(self, sql: str) -> str:
        """The answer as a table for a terminal; raises QueryError."""
        return self._ask(sql, str) or "done"

    def _ask(self, sql: str, read: Callable[["duckdb.DuckDBPyRelation"], Answer]) -> Answer | None:
        """What ``read`` makes of the answer; None for a statement without one."""
        import duckdb

        try:
            found = self._connection.sql(sql)
            return None if found is None else read(found)
        except duckdb.Error as error:
            raise QueryError(_one_line(error)) from None

    def notes(self) -> list[str]:
        """What a reader of the tables must know: rows of other versions, runs that are not done."""
        lines = []
        others = (
            f"SELECT schema_version, count(DISTINCT run) FROM steps "
            f"WHERE schema_version IS DISTINCT FROM {SCHEMA_VERSION} GROUP BY ALL ORDER BY ALL"
        )
        for version, count in self.rows(others):
            lines.append(
                f"{count} runs have rows of schema version {version}, and this version writes {SCHEMA_VERSION}: "
                "fields that either does not know are missing or NULL"
            )
        unfinished = sum(status_of(run) is not Status.DONE for run in self.runs)
        if unfinished:
            lines.append(f"{unfinished} of {len(self.runs)} runs are not done: their rows are those so far")
        return lines

    def _sources(self) -> dict[str, str]:
        outputs = [run / OUTPUTS for run in self.runs if has_content(run / OUTPUTS)]
        steps = [_with_run(part) for part in step_sources(self.runs)]
        whole = {
            name: _documents([run / file for run in self.runs if _is_json(run / file)]) for name, file in WHOLE.items()
        }
        whole["statuses"] = _with_deaths(whole["statuses"], [run for run in self.runs if is_abandoned(run)])
        return {
            "steps": " UNION ALL BY NAME ".join(steps),
            "outputs": _with_run(json_lines(outputs, OUTPUT_COLUMNS)),
            **whole,
        }

    def _add_settings(self) -> None:
        self._connection.execute("CREATE TABLE settings (run VARCHAR, key VARCHAR, value VARCHAR)")
        rows = [[str(run), key, value] for run in self.runs for key, value in _settings(run / CONFIG)]
        if rows:
            self._connection.executemany("INSERT INTO settings VALUES (?, ?, ?)", rows)


def _with_run(rows: str) -> str:
    """The rows with the folder of their run in place of the name of their file."""
    return f"SELECT {RUN}, * EXCLUDE (filename) FROM ({rows})"


def _with_deaths(statuses: str, died: Sequence[Path]) -> str:
    """The statuses, with ``died`` for the runs whose process is gone."""
    if not died:
        return statuses
    told = f"CASE WHEN list_contains({quoted(died)}, run) THEN 'died' ELSE status END AS status"
    return f"SELECT * REPLACE ({told}) FROM ({statuses})"


def _documents(paths: Sequence[Path]) -> str:
    """One row a JSON file."""
    if not paths:
        return "SELECT NULL::VARCHAR AS run WHERE false"
    return (
        f"SELECT {RUN}, * EXCLUDE (filename) FROM read_json({quoted(paths)}, format = 'auto', "
        f"maximum_object_size = 67108864, map_inference_threshold = -1, sample_size = -1, {UNITED})"
    )


def _settings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeDecodeError):
        # A run that was killed before it wrote any.
        return
    yield from _flat(content, "")


def _flat(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node if isinstance(node, str) else json.dumps(node)


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
