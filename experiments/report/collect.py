"""Finds run folders and reads what they say of themselves; a folder that cannot be read becomes a line, not a crash."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from experiments.report.older import completed
from experiments.report.settings import labels, settings_of
from experiments.report.theme import PLAIN, styles_of
from experiments.run_folder import (
    CONFIG,
    ENVIRONMENT,
    STEPS,
    SUMMARY,
    Status,
    failure_of,
    is_abandoned,
    read_json,
    status_of,
)
from specdec.step_row import SCHEMA_VERSION

PHASES = ("draft", "verify", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A number with its interval and count; None for what was not observed."""

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """What ``config.resolved.yaml``, ``env.json`` and ``summary.json`` say of a run that is done.

    number    its name in the report, from 1
    label     what stands beside its marks: number, drafter, draft length, and one or two settings more that differ
    style     class of its marks: the colour of its drafter
    config    the resolved configuration
    settings  keys of the configuration, of the mode that ran and of the environment, flat, as text
    accepted  number of steps that accepted 0, 1, 2, ... drafts
    remarks   what a reader of its figures must know
    """

    number: int
    label: str
    style: str
    path: Path
    config: Mapping[str, Any]
    settings: Mapping[str, str]
    mode: Mapping[str, object]
    tokens_per_step: Measure
    tokens_per_step_without_loops: Measure
    draft_acceptance_rate: Measure
    loop_token_share: Measure
    speedup: Measure
    speedup_decode: Measure
    survival: tuple[Measure, ...]
    conditional: tuple[Measure, ...]
    accepted: tuple[int, ...]
    ms_per_round: tuple[float | None, ...]
    lossless: bool | None
    lossless_how: str
    repeats_agree: bool
    violated_identities: tuple[str, ...]
    num_requests: int
    num_steps: int
    remarks: tuple[str, ...] = ()

    @property
    def draft_cost(self) -> float | None:
        """Draft time over verify time of a round; None where it was not timed."""
        draft, verify, _ = self.ms_per_round
        return None if draft is None or not verify else draft / verify

    @property
    def drafter(self) -> str:
        return self.settings["drafter"]

    @property
    def num_draft_tokens(self) -> int | None:
        found = self.settings.get("drafter.num_draft_tokens", "")
        return int(found) if found.isdigit() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnfinishedRun:
    """A run folder without a usable summary, and why."""

    path: Path
    state: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """All runs below some folders: finished ones by drafter and draft length, plain decoding last."""

    finished: tuple[FinishedRun, ...]
    unfinished: tuple[UnfinishedRun, ...]


def collect(folders: Sequence[Path]) -> Found:
    """Read every run folder below ``folders``, each once."""
    paths = sorted({path.resolve() for folder in folders for path in run_folders(folder)})
    read = [read_run(path) for path in paths]
    finished = sorted((run for run in read if isinstance(run, FinishedRun)), key=_order)
    others = labels([run.settings for run in finished])
    styles = styles_of([run.drafter for run in finished])
    return Found(
        finished=tuple(
            replace(_named(run, number, told), style=styles[run.drafter])
            for number, (run, told) in enumerate(zip(finished, others, strict=True), start=1)
        ),
        unfinished=tuple(run for run in read if isinstance(run, UnfinishedRun)),
    )


def _named(run: FinishedRun, number: int, others: Sequence[str]) -> FinishedRun:
    """The run with its number and its label, which ends with ``others``."""
    length = [] if run.num_draft_tokens is None else [f"{run.num_draft_tokens} drafted"]
    label = ", ".join([f"#{number} {run.drafter}", *length, *others])
    return replace(run, number=number, label=label)


def run_folders(folder: Path) -> Iterator[Path]:
    """Folders below ``folder``, itself included, that hold rows, a configuration or a summary of a run."""
    for place, _, names in os.walk(folder):
        if {CONFIG, STEPS, SUMMARY} & set(names):
            yield Path(place)


def read_run(path: Path) -> FinishedRun | UnfinishedRun:
    """One run folder, whatever state it is in."""
    status = status_of(path)
    if status is Status.DONE:
        return _read_done(path)
    if status is Status.FAILED:
        return UnfinishedRun(path=path, state="failed", reason=failure_of(path) or "without a traceback")
    rows = f"{_num_lines(path / STEPS)} whole rows of steps so far"
    if is_abandoned(path):
        return UnfinishedRun(path=path, state="died", reason=f"status.json says running, its process is gone; {rows}")
    if status is Status.RUNNING:
        return UnfinishedRun(path=path, state="not finished", reason=f"running, or interrupted; {rows}")
    return UnfinishedRun(path=path, state="damaged", reason=f"no readable status.json; {rows}")


def _read_done(path: Path) -> FinishedRun | UnfinishedRun:
    try:
        summary, environment = read_json(path / SUMMARY), read_json(path / ENVIRONMENT)
        config = _config(path / CONFIG)
        version = summary.get("schema_version", 0)
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            told = f"schema version {version!r} of summary.json; this report reads {SCHEMA_VERSION} and older"
            return UnfinishedRun(path=path, state="other version", reason=told)
        if version == SCHEMA_VERSION:
            return _finished(path, config, environment, summary)
        whole, remark = completed(summary, version)
        return replace(_finished(path, config, environment, whole), remarks=(remark,))
    except (OSError, ValueError, yaml.YAMLError) as error:
        return UnfinishedRun(path=path, state="damaged", reason=str(error) or type(error).__name__)
    except (KeyError, TypeError, AttributeError) as error:
        return UnfinishedRun(path=path, state="damaged", reason=f"a file lacks what belongs there ({error})")


def _config(path: Path) -> dict[str, Any]:
    """A resolved configuration: plain YAML, which the parser in C reads ten times as fast."""
    content = yaml.load(
        path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    )
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a mapping of settings")
    return content


def _finished(path: Path, config: dict, environment: Mapping[str, Any], summary: Mapping[str, Any]) -> FinishedRun:
    return FinishedRun(
        number=0,
        label="",
        style="",
        path=path,
        config=config,
        settings=settings_of(config, summary, environment),
        mode=dict(summary["mode"]),
        tokens_per_step=_measure(summary["tokens_per_step"]),
        tokens_per_step_without_loops=_measure(summary["without_loops"]["tokens_per_step"]),
        draft_acceptance_rate=_measure(summary["draft_acceptance_rate"]),
        loop_token_share=_measure(summary["loop_token_share"]),
        speedup=_measure(summary["speedup"]),
        speedup_decode=_measure(summary["speedup_decode"]),
        survival=tuple(map(_measure, summary["survival"])),
        conditional=tuple(map(_measure, summary["conditional"])),
        accepted=tuple(map(int, summary["accepted_histogram"])),
        ms_per_round=tuple(_number(summary["ms_per_round"][phase]) for phase in PHASES),
        lossless=summary["lossless"],
        lossless_how=str(summary["lossless_how"]),
        repeats_agree=bool(summary["repeats_agree"]),
        violated_identities=tuple(map(str, summary["violated_identities"])),
        num_requests=int(summary["num_requests"]),
        num_steps=int(summary["num_steps"]),
    )


def _measure(found: Mapping[str, Any]) -> Measure:
    low, high = _number(found["low"]), _number(found["high"])
    return Measure(value=_number(found["value"]), low=low, high=high, n=int(found["n"]))


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _order(run: FinishedRun) -> tuple[bool, str, int, str]:
    return run.drafter == PLAIN, run.drafter, run.num_draft_tokens or 0, str(run.path)


def _num_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
