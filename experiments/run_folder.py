"""RunFolder: the files of one run, who may write them, and how far it got; knows nothing of metrics or models.

config.resolved.yaml  env.json  steps.jsonl  outputs.jsonl  summary.json  status.json  [steps.parquet]

While it goes on there is progress.json, too. What an attempt that did not finish left of its rows is kept by the next
one as steps.partial-1.jsonl and outputs.partial-1.jsonl, and so on.
"""

import fcntl
import json
import os
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TextIO

from specdec.errors import SpecDecError

CONFIG = "config.resolved.yaml"
ENVIRONMENT = "env.json"
STEPS = "steps.jsonl"
OUTPUTS = "outputs.jsonl"
SUMMARY = "summary.json"
STATUS = "status.json"
PARQUET = "steps.parquet"
LOCK = "run.lock"
PROGRESS = "progress.json"
INTERRUPTED = "interrupted"
HOST = socket.gethostname()
MAX_OVERWRITTEN = 160
"""Characters of an error that fit into the block of the status.json that they overwrite."""


class Status(Enum):
    """How far a run got. A run whose process was killed stays RUNNING, and nobody holds its lock."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class FolderInUseError(SpecDecError, RuntimeError):
    """Another process writes to the folder."""


class ForeignFilesError(SpecDecError, RuntimeError):
    """A folder holds files that no run wrote, and that a run would replace."""


def write_json(path: Path, content: object) -> None:
    """Replace ``path`` in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(_json_text(content), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _json_text(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict:
    """Content of a JSON file; raises FileNotFoundError when there is none."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_jsonl(path: Path) -> list[dict]:
    """Complete lines of a JSONL file; a torn last line, left by a killed process, is passed over."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].split("\n") if line]


def status_of(folder: Path) -> Status:
    """What ``status.json`` says; ABSENT without a readable one."""
    try:
        return Status(read_json(folder / STATUS)["status"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError, ValueError):
        return Status.ABSENT


def failure_of(folder: Path) -> str:
    """Why a run failed: ``error`` in ``status.json`` or the last line of its traceback, or an empty text."""
    try:
        content = read_json(folder / STATUS)
    except (FileNotFoundError, json.JSONDecodeError):
        return ""
    lines = content.get("traceback", "").strip().splitlines()
    return content.get("error") or (lines[-1] if lines else "")


def record_death(folder: Path, others: Path | None, *, pid: int | None, reason: str) -> None:
    """Record that the process ``pid`` of a run died: in its folder, and in each of its baselines that it left running.

    others  where the baselines of a sweep lie, of which another process may make one at this moment
    """
    places = [folder, folder / "baseline", *(others.glob("*") if others is not None else ())]
    for place in places:
        content = read_status(place)
        mine = content.get("status") == Status.RUNNING.value and content.get("pid") == pid
        if mine or (place is folder and not content):
            place.mkdir(parents=True, exist_ok=True)
            write_json(place / STATUS, {**content, "status": Status.FAILED.value, "error": reason, "ended": _now()})


def read_status(folder: Path) -> dict:
    """Content of ``status.json``: status, started, pid, host, and how it ended; empty without a readable one."""
    try:
        content = read_json(folder / STATUS)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_abandoned(folder: Path) -> bool:
    """Whether a run says ``running`` and its process, which was one of this machine, is gone.

    Of a process that is recorded without its number or its machine nobody can know.
    """
    content = read_status(folder)
    pid = content.get("pid")
    if content.get("status") != Status.RUNNING.value or content.get("host") != HOST or not isinstance(pid, int):
        return False
    return not Path(f"/proc/{pid}").exists()


class FolderLock:
    """A file lock that dies with its process; holds the open file while it is locked."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        self._folder = folder
        self._wait = wait
        self._file: TextIO | None = None

    def __enter__(self) -> "FolderLock":
        """Take the lock; raises FolderInUseError when it is held and ``wait`` is false."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / LOCK).open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX if self._wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise FolderInUseError(f"another process is writing to {self._folder}") from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None, "the lock was never taken"
        self._file.close()


class RunFolder:
    """Writes one run. Enter it under its lock; leaving it records ``done``, or ``failed`` with the traceback.

    A run that its user ended is ``failed`` with the error ``interrupted``, which needs no traceback.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started = ""

    def __enter__(self) -> "RunFolder":
        """Start afresh and keep the rows of an unfinished attempt; raises ForeignFilesError for what no run wrote."""
        self.path.mkdir(parents=True, exist_ok=True)
        _check_own(self.path)
        if status_of(self.path) is not Status.DONE:
            _keep_partial(self.path)
        self._started = _now()
        for name in (SUMMARY, ENVIRONMENT, CONFIG, PARQUET):
            (self.path / name).unlink(missing_ok=True)
        for name in (STEPS, OUTPUTS):
            (self.path / name).write_text("", encoding="utf-8")
        self._write_status(Status.RUNNING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write_status(Status.DONE)
            elif isinstance(error, KeyboardInterrupt):
                self._write_status(Status.FAILED, error=INTERRUPTED)
            else:
                text = "".join(traceback.format_exception(kind, error, trace))
                self._write_status(Status.FAILED, traceback=text)
        except OSError as refused:
            self._overwrite_status(error or refused, refused)
            if error is None:
                raise

    def write_config(self, yaml: str) -> None:
        (self.path / CONFIG).write_text(yaml, encoding="utf-8")

    def write_environment(self, environment: Mapping[str, object]) -> None:
        write_json(self.path / ENVIRONMENT, environment)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        write_json(self.path / SUMMARY, summary)

    def append_steps(self, rows: Iterable[Mapping[str, object]]) -> None:
        self._append(STEPS, rows)

    def append_outputs(self, rows: Iterable[Mapping[str, object]]) -> None:
        self._append(OUTPUTS, rows)

    def _append(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def _write_status(self, status: Status, **more: str) -> None:
        content = {"status": status.value, "started": self._started, "pid": os.getpid(), "host": HOST, **more}
        if status is not Status.RUNNING:
            content["ended"] = _now()
        write_json(self.path / STATUS, content)

    def _overwrite_status(self, error: BaseException, refused: OSError) -> None:
        """Record ``failed`` in the blocks that status.json has already, since the disk gives no new ones."""
        last_line = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_OVERWRITTEN]
        try:
            with (self.path / STATUS).open("r+", encoding="utf-8") as file:
                file.write(_json_text({"status": Status.FAILED.value, "traceback": last_line}))
                file.truncate()
        except OSError:
            print(f"{self.path / STATUS} cannot be written and may say running: {refused}", file=sys.stderr)


def _check_own(folder: Path) -> None:
    """Raise ForeignFilesError for files of a run's names in a folder without a ``status.json``."""
    if (folder / STATUS).exists():
        return
    named = [folder / name for name in (CONFIG, ENVIRONMENT, STEPS, OUTPUTS, SUMMARY, PARQUET)]
    foreign = [path.name for path in named if path.exists() and path.stat().st_size]
    if foreign:
        raise ForeignFilesError(
            f"{folder} holds {', '.join(foreign)} and no {STATUS}: no run wrote that, and nothing is overwritten; "
            f"name another folder (conf: hydra.run.dir)"
        )


def _keep_partial(folder: Path) -> None:
    """Move the rows of an attempt that did not finish to the next free number."""
    names = [name for name in (STEPS, OUTPUTS) if (folder / name).exists() and (folder / name).stat().st_size]
    if not names:
        return
    number = 1
    while any((folder / partial_name(name, number)).exists() for name in (STEPS, OUTPUTS)):
        number += 1
    for name in names:
        os.replace(folder / name, folder / partial_name(name, number))


def partial_name(name: str, number: int) -> str:
    """``steps.partial-1.jsonl`` for ``steps.jsonl`` and 1."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.partial-{number}.{suffix}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
