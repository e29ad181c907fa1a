"""Cells: what one way of decoding did with each prompt, kept in a file of its own so that a stopped run goes on."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdec.step_row import StepRow

TUPLES = ("draft_ids", "output_ids", "overlap", "draft_probs", "target_probs", "parents")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One request; times in seconds.

    passes          of the target, those of the prompt included
    cpu_s, wall_s   of all passes; CPU time is that of the process
    decode_cpu_s, decode_wall_s, num_decoded  of the passes without prompt tokens
    steps           one line per verify step; empty for transformers
    """

    source: str
    category: str
    output_ids: tuple[int, ...]
    passes: int
    cpu_s: float
    wall_s: float
    decode_cpu_s: float = 0.0
    decode_wall_s: float = 0.0
    num_decoded: int = 0
    steps: tuple[Mapping[str, object], ...] = ()

    @property
    def rows(self) -> list[StepRow]:
        return [
            StepRow(**{name: tuple(v) if name in TUPLES and v is not None else v for name, v in step.items()})
            for step in self.steps
        ]


@dataclass(kw_only=True, slots=True)
class Cell:
    """Requests by id. ``settings`` is everything that they depend on; a file with other settings is begun anew."""

    path: Path
    settings: Mapping[str, object]
    requests: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, object]) -> "Cell":
        """The cell in a file, or an empty one."""
        cell = cls(path=path, settings=settings)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return cell
        if content["settings"] == json.loads(json.dumps(dict(settings))):
            cell.requests = {name: _measured(record) for name, record in content["requests"].items()}
        return cell

    def add(self, name: str, measured: Measured) -> None:
        """Take a request and write the file, whole or not at all."""
        self.requests[name] = measured
        content = {
            "settings": dict(self.settings),
            "requests": {key: _record(value) for key, value in self.requests.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content) + "\n", encoding="utf-8")
        os.replace(new, self.path)


def _record(measured: Measured) -> dict[str, object]:
    return {name: getattr(measured, name) for name in Measured.__slots__}


def _measured(record: Mapping[str, object]) -> Measured:
    content = dict(record)
    return Measured(**{**content, "output_ids": tuple(content["output_ids"]), "steps": tuple(content["steps"])})
