"""Reading files of other engines: their form, JSON lines, and Prometheus' text; knows no engine's words."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.imports.statistics import ImportedFileError

LOG, PROMETHEUS, JSON = "log", "prometheus", "json"
SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A file: its lines without their ends, and its form."""

    path: Path
    lines: tuple[str, ...]
    form: str

    def where(self, number: int) -> str:
        """File and line, counted from 1."""
        return f"{self.path}:{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One line of Prometheus' text format."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_text(path: Path) -> Text:
    """Read a file; raises ImportedFileError for one that is not there, empty, or not text."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ImportedFileError(f"{path}: cannot be read: {error}") from None
    lines = tuple(content.splitlines())
    if not content.strip():
        raise ImportedFileError(f"{path}: it is empty")
    return Text(path=path, lines=lines, form=_form(content, lines))


def _form(content: str, lines: tuple[str, ...]) -> str:
    first = next(line.strip() for line in lines if line.strip())
    if first.startswith("{") or (first.startswith("[") and _is_json(content)):
        return JSON
    if first.startswith(("# HELP", "# TYPE")) or SAMPLE.fullmatch(first):
        return PROMETHEUS
    return LOG


def _is_json(content: str) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def json_objects(text: Text) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Objects of a JSON file, a list of objects or JSON lines, with where each stands; None for a malformed line."""
    try:
        content = json.loads("\n".join(text.lines))
    except ValueError:
        for number, line in enumerate(text.lines, start=1):
            if line.strip():
                yield text.where(number), _object(line)
        return
    entries = content if isinstance(content, list) else [content]
    for number, entry in enumerate(entries, start=1):
        where = f"{text.path} entry {number}" if isinstance(content, list) else str(text.path)
        yield where, entry if isinstance(entry, dict) else None


def _object(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def samples(text: Text, prefix: str) -> Iterator[tuple[str, Sample | None]]:
    """Samples whose name begins with ``prefix``, with where each stands; None for a malformed line."""
    for number, line in enumerate(text.lines, start=1):
        if line.startswith(prefix):
            yield text.where(number), _sample(line.strip())


def _sample(line: str) -> Sample | None:
    found = SAMPLE.fullmatch(line)
    if found is None:
        return None
    labels, inside = dict(LABEL.findall(found["labels"] or "")), found["labels"] or ""
    if LABEL.sub("", inside).replace(",", "").strip():
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    return Sample(name=found["name"], labels=labels, value=value) if math.isfinite(value) else None


def count_of(value: object) -> int | None:
    """A count that JSON or a counter holds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        return None
    return int(value)


def number_of(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
