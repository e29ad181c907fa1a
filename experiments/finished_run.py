"""FinishedRun: what a finished run left in its folder, read back and checked; computes no metric.

A run of an older schema version is read where it has all that figures are made of, with a note: what was added since
then has its default. One that lacks something, or of a newer version, is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments import versions
from experiments.run_folder import (
    CONFIG,
    ENVIRONMENT,
    OUTPUTS,
    STATUS,
    STEPS,
    SUMMARY,
    Status,
    failure_of,
    read_json,
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


class ImportedRunError(UnusableRunError):
    """A folder holds the statistics of another engine, which has neither prompts nor tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run.

    config       of config.resolved.yaml
    environment  of env.json
    rows         of steps.jsonl
    outputs      lines of outputs.jsonl by request id and turn, in order of finishing
    timings      one per repeat
    torn         files whose last line was cut off; that line is left out
    older        schema versions before this one's that its files have
    """

    folder: Path
    config: Record
    environment: Record
    rows: tuple[StepRow, ...]
    outputs: Mapping[Key, Record]
    timings: tuple[Timing, ...]
    torn: frozenset[str]
    older: frozenset[int] = frozenset()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of figures of this run must know."""
        torn = [f"{self.folder / name}: the last line is torn; that line is left out" for name in sorted(self.torn)]
        older = [f"{self.folder}: {versions.note(version)}" for version in sorted(self.older)]
        return (*torn, *older)


def read_run(folder: Path) -> FinishedRun:
    """Read a run folder; raises UnusableRunError, in one line, for one that is not finished or cannot be read."""
    _check_finished(folder)
    summary = _read_json(folder / SUMMARY)
    if "imported" in summary:
        raise ImportedRunError(
            f"{folder} was imported ({summary.get('mode', {}).get('source', 'from another engine')}): its prompts and "
            "tokens are not known, and without them nothing can be paired or run again; specdec compare shows its "
            "figures beside another's"
        )
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
        older=frozenset(
            _version(record) for record in (summary, *steps, *outputs) if _version(record) != SCHEMA_VERSION
        ),
    )


def is_imported(folder: Path) -> bool:
    """Whether a run folder holds the statistics of another engine."""
    try:
        return "imported" in read_json(folder / SUMMARY)
    except (OSError, ValueError):
        return False


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
    # Malformed JSON and malformed UTF-8 both raise it.
    except ValueError as error:
        raise UnusableRunError(f"{where}: not JSON ({error})") from None


def _check_version(record: Record, where: object) -> None:
    """Raise UnusableRunError for a version that nobody can know here; an older one is judged by what it has."""
    refused = versions.refusal(_version(record))
    if refused:
        raise UnusableRunError(f"{where}: {refused}")


def _version(record: Record) -> Any:
    """Of a record; one without was written before there were versions."""
    return record.get("schema_version", 0)


def _check_names(record: Record, needed: tuple[str, ...], where: object) -> None:
    missing = [name for name in needed if name not in record]
    if missing:
        version = record.get("schema_version", SCHEMA_VERSION)
        age = "" if version == SCHEMA_VERSION else f" (older schema version {version}: run it again)"
        raise UnusableRunError(f"{where}: has no {', '.join(missing)}{age}")


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
