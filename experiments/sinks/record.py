"""Record: what a tracker is told of a run that is done or failed, read from its folder; knows no tracker."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from experiments.run_folder import CONFIG, ENVIRONMENT, SUMMARY, Status, failure_of, read_json, status_of

POSITIONS = ("survival", "survival_n", "conditional", "conditional_n")
CATEGORIES = ("tokens_per_step", "low", "high", "n")
RATES = ("speedup", "speedup_decode", "tokens_per_second", "tokens_per_second_decode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of values, the first of which names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A run that has ended.

    group    name of its sweep; empty for a run of its own
    scalars  by names that do not change: a metric of ``summary.json``, or NAME/PART of one with parts
    tables   ``by_position`` and ``by_category``
    status   done or failed; a failed run may have neither configuration nor scalars nor tables
    error    why it failed, in one line
    """

    folder: Path
    group: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    scalars: Mapping[str, float]
    tables: Mapping[str, Table]
    status: str = Status.DONE.value
    error: str = ""

    @property
    def is_done(self) -> bool:
        return self.status == Status.DONE.value

    @property
    def facts(self) -> dict[str, Any]:
        """Configuration, environment and how it ended, for a tracker's page of the run."""
        ended = {"status": self.status, **({"error": self.error} if self.error else {})}
        return {**self.config, "environment": dict(self.environment), **ended}

    @property
    def name(self) -> str:
        """The run key in a sweep, else the name of the folder."""
        return self.folder.name

    def report(self) -> str:
        """The HTML report over this run alone."""
        from experiments.report.collect import collect
        from experiments.report.page import page

        return page(collect([self.folder]))


class Sink(Protocol):
    """A tracker that is told of finished runs. Made from its settings alone; the package is imported in ``publish``.

    package    what must be importable, and ``extra`` what brings it
    timeout_s  after which an attempt is given up
    """

    @property
    def package(self) -> str: ...

    @property
    def extra(self) -> str: ...

    @property
    def timeout_s(self) -> float: ...

    def publish(self, record: Record) -> None:
        """Tell it everything, and close it whatever happens; runs in a process of its own."""

    def fallback(self) -> "Sink | None":
        """What is tried once when this one failed; None when there is nothing else."""


def read_record(folder: Path, *, group: str) -> Record:
    """Read the folder of a run that has ended; of a failed one what there is."""
    if status_of(folder) is not Status.DONE:
        return _read_failed(folder, group)
    summary = read_json(folder / SUMMARY)
    return Record(
        folder=folder,
        group=group,
        config=OmegaConf.to_container(OmegaConf.load(folder / CONFIG)),
        environment=read_json(folder / ENVIRONMENT),
        scalars=scalars_of(summary),
        tables={"by_position": _by_position(summary), "by_category": _by_category(folder)},
    )


def _read_failed(folder: Path, group: str) -> Record:
    has_config, has_environment = (folder / CONFIG).exists(), (folder / ENVIRONMENT).exists()
    return Record(
        folder=folder,
        group=group,
        config=OmegaConf.to_container(OmegaConf.load(folder / CONFIG)) if has_config else {},
        environment=read_json(folder / ENVIRONMENT) if has_environment else {},
        scalars={},
        tables={},
        status=Status.FAILED.value,
        error=failure_of(folder),
    )


def scalars_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Every number of ``summary.json`` that was observed; ``lossless`` as 0 or 1."""
    out: dict[str, float] = {}
    for name, value in summary.items():
        if name == "schema_version":
            continue
        if isinstance(value, Mapping) and "value" in value:
            value = value["value"]
        if isinstance(value, bool | int | float):
            out[name] = float(value)
    for phase, value in summary["ms_per_round"].items():
        if value is not None:
            out[f"ms_per_round/{phase}"] = float(value)
    return out


def _by_position(summary: Mapping[str, Any]) -> Table:
    pairs = zip(summary["survival"], summary["conditional"], strict=True)
    rows = [
        (position, survival["value"], survival["n"], conditional["value"], conditional["n"])
        for position, (survival, conditional) in enumerate(pairs, start=1)
    ]
    return Table(columns=("position", *POSITIONS), rows=tuple(rows))


def _by_category(folder: Path) -> Table:
    from experiments.report.rows import read_rows

    found = read_rows(folder).by_category
    rows = [(name, measure.value, measure.low, measure.high, measure.n) for name, measure in found.items()]
    return Table(columns=("category", *CATEGORIES), rows=tuple(rows))
