"""Supervisor: one process that does run after run and keeps the target loaded; knows nothing of Hydra.

A run may take its process with it (out of memory, a crash of a kernel). The process dies alone: its folder is recorded
as killed, and the next run gets a fresh process. This module imports no torch; the process does.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import (
    connection,
    get_all_start_methods,
    get_context,
    get_start_method,
    parent_process,
    set_start_method,
    util,
)
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.job_names import naming
from experiments.kept import Kept
from experiments.run_folder import record_death
from experiments.sinks.publish import group_of, publish
from experiments.termination import EXIT_TERMINATED, Terminated, born_deaf, hear, pass_over
from specdec.errors import ConfigError, SpecDecError

if TYPE_CHECKING:
    from experiments.job import Worker

# Forked from a process that has imported torch and has no threads: a second process is there at once.
METHOD = "forkserver"
PRELOADED = ["torch"]
ECHO_S = 1.5
"""How long after an interrupt another one is taken for the same: a launcher passes on what a terminal sent, too."""
END_S = 10.0
"""How long an interrupted or idle process may take to write its folder and end."""


class RunFailedError(SpecDecError, RuntimeError):
    """A run failed in its process; its folder says why."""


class ProcessDiedError(RunFailedError):
    """The process of a run ended without an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One run. The paths in ``config`` are relative to ``cwd``; what else is as in ``experiments.job.Worker.run``."""

    config: Mapping[str, Any]
    folder: Path
    shared_baselines: Path | None
    cwd: Path
    label: str = ""
    define: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Configurations to check as ``experiments.job.check_settings`` does; paths are relative to ``cwd``.

    names  of their jobs, for refusals
    """

    configs: tuple[Mapping[str, Any], ...]
    names: tuple[str, ...]
    cwd: Path


# What a process answers before it begins a task.
TAKEN = "taken"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended.

    error    empty when it is done, else its last line
    sound    whether the process may be trusted with another run: after an error that nobody foresaw it is replaced
    """

    error: str = ""
    sound: bool = True


class Supervisor:
    """Hands runs to a process that it starts when there is something to do; owns that process."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._tasks: Connection | None = None
        # Before the processes that are left are waited for at the end of this one, whatever started it.
        util.Finalize(self, self.close, exitpriority=100)

    def run(self, task: Task) -> None:
        """Do a run and wait for it; raises RunFailedError. After KeyboardInterrupt no process is left."""
        try:
            outcome = self._outcome(task)
        except EOFError:
            pid, reason = self._bury()
            record_death(task.folder, task.shared_baselines, pid=pid, reason=reason)
            publish(task.config["logger"], task.folder, group=group_of(task.shared_baselines))
            raise ProcessDiedError(reason) from None
        if not outcome.sound:
            self.close()
        if outcome.error:
            raise RunFailedError(outcome.error)

    def check(self, check: Check) -> None:
        """Check configurations there, so that torch is not imported here; raises ConfigError for the first bad one."""
        try:
            outcome = self._outcome(check)
        except EOFError:
            _, reason = self._bury()
            raise ProcessDiedError(f"the settings were not checked: {reason}") from None
        if outcome.error:
            raise ConfigError(outcome.error)

    def close(self) -> None:
        """End the process, which has nothing to do; a later run starts another."""
        if self._process is None or self._tasks is None:
            return
        process, self._process = self._process, None
        self._tasks.close()
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()

    def _sent(self, task: Task | Check) -> tuple[BaseProcess, Connection]:
        """A process that has been given ``task``: the one at hand, unless it has died since its last run."""
        sys.stdout.flush()
        process, tasks = self._process, self._tasks
        if process is not None and tasks is not None and process.is_alive() and _takes(process, tasks, task):
            return process, tasks
        self.close()
        self._process, self._tasks = _start()
        self._tasks.send(task)
        return self._process, self._tasks

    def _outcome(self, task: Task | Check) -> Outcome:
        """What comes of ``task``; raises EOFError when the process died of it. After KeyboardInterrupt none is left."""
        process, tasks = self._sent(task)
        try:
            return _answer(process, tasks)
        except KeyboardInterrupt:
            self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Let the run record that it was interrupted; a second interrupt ends it at once."""
        process = self._process
        if process is None or process.pid is None:
            return
        try:
            if process.is_alive():
                os.kill(process.pid, signal.SIGINT)
            with _deaf_to_interrupts():
                process.join(ECHO_S)
            process.join(END_S)
        finally:
            if process.is_alive():
                process.kill()
            self.close()

    def _bury(self) -> tuple[int | None, str]:
        """Let go of a process that died; its pid, and what it died of."""
        process = self._process
        assert process is not None, "a process died that was never started"
        process.join()
        pid, reason = process.pid, _cause_of_death(process.exitcode)
        self.close()
        return pid, reason


@cache
def supervisor() -> Supervisor:
    """The one of this process: launchers make a fresh copy of the function that does a job for every job."""
    return Supervisor()


def _start() -> tuple[BaseProcess, Connection]:
    if get_start_method(allow_none=True) not in (None, *get_all_start_methods()):
        # A process of joblib's names its own method as the default, which ours would look for and not have.
        set_start_method(METHOD, force=True)
    context = get_context(METHOD)
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, dict(os.environ)), name="run worker")
    # The fork server must outlive a SIGTERM to every process: it says how the others ended.
    with born_deaf():
        process.start()
    theirs.close()
    return process, ours


def _takes(process: BaseProcess, tasks: Connection, task: Task | Check) -> bool:
    """Give a task to a process that waits for one; False when it died before it took the task."""
    try:
        tasks.send(task)
        return _received(process, tasks) == TAKEN
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return False


def _answer(process: BaseProcess, tasks: Connection) -> Outcome:
    """Wait for the outcome; raises EOFError when the process ends without one."""
    answer = _received(process, tasks)
    # A fresh process says first that it took the task.
    return _received(process, tasks) if answer == TAKEN else answer


def _received(process: BaseProcess, tasks: Connection) -> Any:
    """What the process says next; raises EOFError when it ends without a word."""
    ready = connection.wait([tasks, process.sentinel])
    if tasks in ready or tasks.poll():
        try:
            return tasks.recv()
        except ConnectionResetError:
            raise EOFError from None
    raise EOFError


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _cause_of_death(code: int | None) -> str:
    if code == EXIT_TERMINATED:
        return "interrupted: its process was sent SIGTERM"
    if code is None or code >= 0:
        return f"killed: its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"killed: its process was ended by {name}{hint}"


def serve(tasks: Connection, environ: Mapping[str, str]) -> None:
    """The process: do tasks until nobody sends any more, or an interrupt; a SIGTERM ends it with EXIT_TERMINATED.

    ``environ`` is that of the process that sends them, which may be younger than what this one was forked from.
    """
    os.environ.update(environ)
    signal.signal(signal.SIGINT, _interrupt_once)
    signal.signal(signal.SIGTERM, _interrupt_once)
    hear()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from experiments.job import Worker

        worker = Worker()
        while True:
            task = tasks.recv()
            tasks.send(TAKEN)
            outcome = _do(worker, task)
            sys.stdout.flush()
            tasks.send(outcome)
    except Terminated:
        sys.exit(EXIT_TERMINATED)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def _do(worker: "Worker", task: Task | Check) -> Outcome:
    from experiments.job import check_settings

    with Kept() as kept:
        os.chdir(task.cwd)
        if isinstance(task, Check):
            for config, name in zip(task.configs, task.names, strict=True):
                with naming(name):
                    check_settings(config)
            return Outcome()
        worker.run(
            task.config, task.folder, shared_baselines=task.shared_baselines, label=task.label, define=task.define
        )
    return Outcome(error=kept.line, sound=kept.error is None or isinstance(kept.error, SpecDecError))


def _interrupt_once(number: int, _: object) -> None:
    """Interrupt what is done now; a second signal must not interrupt the record of the first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, pass_over)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _end_with_parent() -> None:
    """Interrupt this process when the one that it works for is gone, so that its folder says so."""
    # A signal that this thread takes would not wake the one that is to hear it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = parent_process()
    assert parent is not None, "this process was started by another"
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(END_S)
    os._exit(1)
