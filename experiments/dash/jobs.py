"""Jobs below some folders: in which state each is, how far it got, and its latest figures; draws nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from experiments.dash.roots import Roots
from experiments.dash.tail import Tail
from experiments.run_folder import (
    PROGRESS,
    STEPS,
    SUMMARY,
    Status,
    failure_of,
    is_abandoned,
    read_json,
    read_status,
    status_of,
)
from experiments.sweep_plan import read_plan


class State(Enum):
    """Where a job is; a job is interrupted when it says running and its process is gone."""

    RUNNING = "running"
    QUEUED = "queued"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    DROPPED = "not started"
    UNREADABLE = "unreadable"
    DONE = "done"


ORDER = {state: number for number, state in enumerate(State)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run folder, or a job of a sweep that has none yet.

    label       settings that the sweep gave it, or the name of the folder
    detail      what a running one does, or why one failed
    num_done    requests of ``total``; 0 of 0 where nothing is counted
    num_steps   rows so far
    num_bad     lines among the rows that cannot be read
    idle_s      seconds since a running one wrote its last row
    figures     tokens_per_step, draft_acceptance_rate, speedup; None where not known
    """

    path: Path
    label: str
    state: State
    detail: str = ""
    num_done: int = 0
    total: int = 0
    num_steps: int = 0
    num_bad: int = 0
    idle_s: float | None = None
    figures: Mapping[str, float | None]
    started: str = ""


class Watch:
    """Looks at the folders again and again; holds how far it has read each file."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._tails: dict[Path, Tail] = {}
        self._summaries: dict[Path, tuple[tuple[int, int], Mapping[str, Any]]] = {}

    def jobs(self) -> list[Job]:
        """Every job, those that go on first, those that are done last."""
        labels: dict[Path, str] = {}
        waiting: list[Job] = []
        for sweep in self._roots.sweep_paths():
            plan = [planned for planned in read_plan(sweep) if (sweep / planned.name).parent == sweep]
            common = set.intersection(*(set(planned.overrides) for planned in plan)) if len(plan) > 1 else set()
            for planned in plan:
                place = sweep / planned.name
                labels[place] = " ".join(line for line in planned.overrides if line not in common) or planned.name
                if status_of(place) is Status.ABSENT:
                    state = State.DROPPED if planned.is_given_up else State.QUEUED
                    waiting.append(Job(path=place, label=labels[place], state=state, figures={}))
        known = {job.path for job in waiting}
        runs, _ = self._roots.run_paths()
        self._forget(runs)
        found = [self._job(path, labels.get(path, self._name(path))) for path in runs if path not in known]
        return sorted([*waiting, *found], key=lambda job: ORDER[job.state])

    def _name(self, path: Path) -> str:
        for root in self._roots.folders:
            if path.is_relative_to(root):
                return str(path.relative_to(root)) if path != root else path.name
        return path.name

    def _forget(self, runs: list[Path]) -> None:
        for path in self._tails.keys() - set(runs):
            del self._tails[path]
        for path in self._summaries.keys() - set(runs):
            del self._summaries[path]

    def _job(self, path: Path, label: str) -> Job:
        status, started = status_of(path), str(read_status(path).get("started", ""))
        if status is Status.DONE:
            self._tails.pop(path, None)
            return Job(path=path, label=label, state=State.DONE, figures=self._figures(path), started=started)
        if status is Status.FAILED:
            detail = failure_of(path) or "no reason is recorded"
            return Job(path=path, label=label, state=State.FAILED, detail=detail, figures={}, started=started)
        if status is Status.ABSENT:
            detail = "no readable status.json"
            return Job(path=path, label=label, state=State.UNREADABLE, detail=detail, figures={})
        return self._running(path, label, started)

    def _running(self, path: Path, label: str, started: str) -> Job:
        so_far = self._tails.setdefault(path, Tail(path / STEPS)).update()
        gone = is_abandoned(path)
        progress = {} if gone else _progress(path / PROGRESS)
        return Job(
            path=path,
            label=label,
            state=State.INTERRUPTED if gone else State.RUNNING,
            detail="its process is gone" if gone else str(progress.get("what", "")),
            num_done=_count(progress.get("num_done")),
            total=_count(progress.get("total")),
            num_steps=so_far.num_steps,
            num_bad=so_far.num_bad,
            idle_s=None if gone else _age_s(path / STEPS),
            figures={
                "tokens_per_step": so_far.tokens_per_step,
                "draft_acceptance_rate": so_far.draft_acceptance_rate,
            },
            started=started,
        )

    def _figures(self, path: Path) -> dict[str, float | None]:
        summary = self._summary(path)
        names = ("tokens_per_step", "draft_acceptance_rate", "speedup")
        return {name: _measured(summary.get(name)) for name in names}

    def _summary(self, path: Path) -> Mapping[str, Any]:
        """summary.json, read again when it has changed."""
        try:
            found = (path / SUMMARY).stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if self._summaries.get(path, (None,))[0] != stamp:
                content = read_json(path / SUMMARY)
                self._summaries[path] = (stamp, content if isinstance(content, dict) else {})
            return self._summaries[path][1]
        except (OSError, ValueError):
            return {}


def _measured(metric: object) -> float | None:
    value = metric.get("value") if isinstance(metric, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _progress(path: Path) -> Mapping[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _age_s(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
