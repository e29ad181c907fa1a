"""Publishing: tells trackers how a run ended within bounded time; whatever they do, its folder is complete.

Each attempt is a process of its own without a terminal. Trackers ask at menus, wait for networks and keep state from
one run to the next; a process can be ended, and takes all of that with it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate

from experiments.extras import require
from experiments.run_folder import Status, status_of
from experiments.sinks.record import Sink, read_record
from specdec.errors import ConfigError

Loggers = Mapping[str, Mapping[str, Any]]


def sinks_of(loggers: Loggers) -> Iterator[tuple[str, Sink]]:
    """The trackers of a configuration by name; jsonl is none, since the run folder is written in any case.

    Raises ConfigError for one that cannot be made or whose package is missing.
    """
    for name, settings in loggers.items():
        if "_target_" not in settings:
            continue
        try:
            sink = instantiate(dict(settings))
        except HydraException as error:
            raise ConfigError(f"logger.{name}: {' '.join(str(error).split())}") from None
        require(sink.package, extra=sink.extra, what=f"logger={name}")
        yield name, sink


def group_of(shared_baselines: Path | None) -> str:
    """Name of the sweep whose runs share these baselines; empty without one."""
    return "" if shared_baselines is None else shared_baselines.parent.name


class Published:
    """Enter it around a run: leaving it tells every tracker that the run is done or failed, but not of an interrupt."""

    def __init__(self, loggers: Loggers, folder: Path, *, group: str) -> None:
        self._loggers, self._folder, self._group = loggers, folder, group

    def __enter__(self) -> None:
        """Nothing is told before the run has ended."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        has_ended = status_of(self._folder) in (Status.DONE, Status.FAILED)
        if has_ended and not isinstance(error, KeyboardInterrupt):
            publish(self._loggers, self._folder, group=self._group)


def publish(loggers: Loggers, folder: Path, *, group: str) -> None:
    """Tell every tracker of the run in ``folder``, which has ended; a failure is one warning on stderr."""
    for name, sink in sinks_of(loggers):
        problem = _attempt(name, sink, folder, group)
        other = sink.fallback() if problem else None
        if other is not None:
            again = _attempt(name, other, folder, group)
            problem = (
                f"{problem}; {'that failed, too: ' + again if again else 'it is kept offline below ' + str(folder)}"
            )
        if problem:
            print(f"warning: logger={name}: {problem} (the run folder is complete)", file=sys.stderr)


def _attempt(name: str, sink: Sink, folder: Path, group: str) -> str:
    """Publish in a process; returns what went wrong, in one line."""
    kind = type(sink)
    task = {
        "sink": {"_target_": f"{kind.__module__}.{kind.__qualname__}", **asdict(sink)},
        "folder": str(folder),
        "group": group,
    }
    log = folder / f"logger.{name}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.sinks.publish", json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))},
            start_new_session=True,
        )
        try:
            code = process.wait(sink.timeout_s)
        except subprocess.TimeoutExpired:
            return f"no answer within {sink.timeout_s:g} s"
        finally:
            _end_group(process)
    if code == 0:
        log.unlink()
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with exit code {code}"


def _end_group(process: subprocess.Popen) -> None:
    """End a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def main() -> None:
    """The process of one attempt."""
    task = json.loads(sys.argv[1])
    record = read_record(Path(task["folder"]), group=task["group"])
    instantiate(task["sink"]).publish(record)


if __name__ == "__main__":
    main()
