"""Tail: figures of a file of steps that grows, from the rows that are new; a half-written line waits for its end."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from specdec.metrics import FORMULAS, StepRow, Steps

NAMES = frozenset(spec.name for spec in fields(StepRow))
FIGURES = ("tokens_per_step", "draft_acceptance_rate")
MAX_BYTES = 16 << 20
"""Read at one time; what is beyond it comes with the next look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoFar:
    """What the rows so far say; a figure is None where nothing was observed.

    num_steps  rows
    num_bad    lines that are no rows
    """

    num_steps: int
    num_bad: int
    tokens_per_step: float | None
    draft_acceptance_rate: float | None


class Tail:
    """Follows one file; holds how far it has read, and sums instead of rows, since a run may have very many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart(0)

    def _restart(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self._num_steps, self._num_bad = 0, 0
        self._sums = {name: [0.0, 0.0] for name in FIGURES}

    def update(self) -> SoFar:
        """Read on; anew where the file is another or shorter than it was, and nothing where it is gone."""
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except OSError:
            self._restart(0)
        return SoFar(
            num_steps=self._num_steps,
            num_bad=self._num_bad,
            tokens_per_step=self._ratio("tokens_per_step"),
            draft_acceptance_rate=self._ratio("draft_acceptance_rate"),
        )

    def _read(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._restart(found.st_ino)
        file.seek(self._offset)
        body, newline, _ = file.read(MAX_BYTES).rpartition(b"\n")
        self._offset += len(body) + len(newline)
        rows = [row for line in body.split(b"\n") if line and (row := self._row(line)) is not None]
        self._add(rows)

    def _row(self, line: bytes) -> StepRow | None:
        try:
            record = json.loads(line)
            return StepRow(**{name: _value(record[name]) for name in record if name in NAMES})
        except (ValueError, TypeError):  # not JSON, not an object, a row of another kind
            self._num_bad += 1
            return None

    def _add(self, rows: Sequence[StepRow]) -> None:
        try:
            steps = Steps.of(rows)
        except (ValueError, TypeError):  # a value of another kind
            self._num_bad += len(rows)
            return
        self._num_steps += len(rows)
        for name in FIGURES if rows else ():
            terms = FORMULAS[name](steps)
            self._sums[name][0] += float(terms.top.sum())
            self._sums[name][1] += float(terms.bottom.sum())

    def _ratio(self, name: str) -> float | None:
        top, bottom = self._sums[name]
        return top / bottom if bottom else None


def _value(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
