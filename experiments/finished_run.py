"""FinishedRun: what a finished run left in its folder, read back and checked; computes no metric."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.run_folder import (
    CONFIG,
    ENVIRONMENT,
    OUTPUTS,
    STATUS,
    STEPS,
    SUMMARY,
    Status,
    failure_of,
    status_of,
)
from experiments.speed import Timing
from specdec.errors import SpecDecError
from specdec.step_row import SCHEMA_VERSION, StepRow

Key = tuple[str, int]
Record = Mapping[str, Any]

# Only what figures are made of is checked for its kind.
KINDS_OF_ROW = {spec.name: spec.type if spec.type in (int, str, bool) else object for spec in fields(StepRow)}
KINDS_OF_OUTPUT = {"request_id": str, "turn": int, "category": str, "prompt_ids": list, "output_ids": list}
NEEDED_OF_ROW = tuple(spec.name for spec in fields(StepRow) if spec.default is MISSING)
NEEDED_OF_CONFIG = ("target", "drafter", "verifier", "sampling", "workload", "engine", "baseline", "require_lossless")
HASHES = ("checkpoint_hash", "prompt_set_hash", "code_hash")
NEEDED_OF_SUMMARY = ("timings",)


class UnusableRunError(SpecDecError, ValueError):
    """A folder holds no finished run that this version can read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run.

    config       of config.resolved.yaml
    environment  of env.json
    rows         of steps.jsonl
    outputs      lines of outputs.jsonl by request id and turn, in order of finishing
    timings      one per repeat
    torn         files whose last line was cut off; that line is left out
    """

    folder: Path
    config: Record
    environment: Record
    rows: tuple[StepRow, ...]
    outputs: Mapping[Key, Record]
    timings: tuple[Timing, ...]
    torn: frozenset[str]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of figures of this run must know."""
        return tuple(
            f"{self.folder / name}: the last line is torn; that line is left out" for name in sorted(self.torn)
        )


def read_run(folder: Path) -> FinishedRun:
    """Read a run folder; raises UnusableRunError, in one line, for one that is not finished or cannot be read."""
    _check_finished(folder)
    summary = _read_json(folder / SUMMARY)
    _check_version(summary, folder / SUMMARY)
    _check_names(summary, NEEDED_OF_SUMMARY, folder / SUMMARY)
    environment = _read_json(folder / ENVIRONMENT)
    _check_names(environment, HASHES, folder / ENVIRONMENT)
    steps, steps_torn = _read_lines(folder / STEPS, NEEDED_OF_ROW, KINDS_OF_ROW)
    outputs, outputs_torn = _read_lines(folder / OUTPUTS, tuple(KINDS_OF_OUTPUT), KINDS_OF_OUTPUT)
    if not outputs:
        raise UnusableRunError(f"{folder / OUTPUTS}: there is no finished request in this run")
    return FinishedRun(
        folder=folder,
        config=_read_config(folder / CONFIG),
        environment=environment,
        rows=_rows(steps, folder / STEPS),
        outputs={(record["request_id"], record["turn"]): record for record in outputs},
        timings=tuple(Timing(**timing) for timing in summary["timings"]),
        torn=frozenset({STEPS} if steps_torn else ()) | frozenset({OUTPUTS} if outputs_torn else ()),
    )


def _check_finished(folder: Path) -> None:
    if not folder.is_dir():
        raise UnusableRunError(f"{folder}: there is no such folder")
    status = status_of(folder)
    if status is Status.ABSENT:
        raise UnusableRunError(f"{folder} is no run folder: {_what_is_there(folder)}")
    if status is Status.RUNNING:
        raise UnusableRunError(f"{folder} is not finished: its run still goes on, or was killed (status.json: running)")
    if status is Status.FAILED:
        raise UnusableRunError(f"{folder} holds a failed run: {failure_of(folder) or 'no reason is recorded'}")


def _what_is_there(folder: Path) -> str:
    if not any(folder.iterdir()):
        return "it is empty"
    if (folder / STATUS).exists():
        return "its status.json cannot be read"
    inner = next((path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{STATUS}")), None)
    return "it has no status.json" + (f"; a run lies in {inner}" if inner else "")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UnusableRunError(f"{path.parent}: the run says that it is done, and has no {path.name}") from None


def _read_json(path: Path) -> dict[str, Any]:
    content = _parse(_read_bytes(path), str(path))
    if not isinstance(content, dict):
        raise UnusableRunError(f"{path}: not a JSON object")
    return content


def _read_config(path: Path) -> dict[str, Any]:
    _read_bytes(path)
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UnusableRunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UnusableRunError(f"{path}: not a mapping of settings")
    _check_names(content, NEEDED_OF_CONFIG, path)
    return content


def _read_lines(path: Path, needed: tuple[str, ...], kinds: Mapping[str, type]) -> tuple[list[dict[str, Any]], bool]:
    """Records of a JSONL file, and whether a torn last line was left out."""
    body, _, tail = _read_bytes(path).rpartition(b"\n")
    records = list(_records(body, path))
    for number, record in enumerate(records, start=1):
        where = f"{path}:{number}"
        _check_version(record, where)
        _check_names(record, needed, where)
        _check_kinds(record, kinds, where)
    return records, bool(tail)


def _records(body: bytes, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(body.split(b"\n") if body else (), start=1):
        record = _parse(line, f"{path}:{number}")
        if not isinstance(record, dict):
            raise UnusableRunError(f"{path}:{number}: not a JSON object")
        yield record


def _parse(text: bytes, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:  # of JSON and of UTF-8
        raise UnusableRunError(f"{where}: not JSON ({error})") from None


def _check_version(record: Record, where: object) -> None:
    version = record.get("schema_version")
    if version == SCHEMA_VERSION:
        return
    age = "older" if not isinstance(version, int) or version < SCHEMA_VERSION else "newer"
    raise UnusableRunError(
        f"{where}: written with the {age} schema version {version}, and this version reads {SCHEMA_VERSION}: "
        f"run it again"
    )


def _check_names(record: Record, needed: tuple[str, ...], where: object) -> None:
    missing = [name for name in needed if name not in record]
    if missing:
        raise UnusableRunError(f"{where}: has no {', '.join(missing)}")


def _check_kinds(record: Record, kinds: Mapping[str, type], where: str) -> None:
    for name, kind in kinds.items():
        if name in record and not isinstance(record[name], kind):
            raise UnusableRunError(f"{where}: {name} cannot be {record[name]!r}")


def _rows(records: Sequence[Record], path: Path) -> tuple[StepRow, ...]:
    unknown = sorted({name for record in records for name in record} - set(KINDS_OF_ROW))
    if unknown:
        raise UnusableRunError(f"{path}: a row has the unknown field {unknown[0]}")
    return tuple(map(_row, records))


def _row(record: Record) -> StepRow:
    return StepRow(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})
