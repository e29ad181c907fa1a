"""Workload: the prompts of a run, read and checked before any model is loaded; knows nothing of tokens.

A row is one conversation. Its text is a completion prompt, a list of token ids, or a list of user turns (each turn
is one request that continues the last).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from sys import float_info
from typing import get_args, get_origin

from experiments.mistakes import describe
from experiments.schemas import Allowed, SamplingSchema
from specdec.errors import WorkloadError

BUILTIN_PATH = Path(__file__).parent / "data" / "builtin_prompts.jsonl"
NO_CATEGORY = "none"
FORMS = ("prompt", "prompt_ids", "turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One conversation of a workload; exactly one of ``prompt``, ``prompt_ids`` and ``turns`` is set.

    overrides  sampling settings of this row, by the names of the ``sampling`` group
    """

    id: str
    category: str = NO_CATEGORY
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    turns: tuple[str, ...] | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Rows in the order in which they run, and a hash of everything in them."""

    name: str
    rows: tuple[Row, ...]
    hash: str


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(_is_int(item) and item >= 0 for item in value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What one field of a line must be, in words and as a test."""

    allowed: str
    holds: Callable[[object], bool]


TEXT = Rule(allowed="text", holds=lambda value: isinstance(value, str))
FORM_RULES = {
    "prompt": TEXT,
    "prompt_ids": Rule(allowed="a list of token ids, 0 or more each", holds=_is_ids),
    "turns": Rule(allowed="a list of at least one text", holds=lambda v: _is_texts(v) and bool(v)),
}
NAME_RULES = {
    "id": Rule(allowed="text or an integer", holds=lambda v: isinstance(v, str) or _is_int(v)),
    "question_id": Rule(allowed="text or an integer", holds=lambda v: isinstance(v, str) or _is_int(v)),
    "category": TEXT,
}


def _fits(value: object, kind: type, allowed: Allowed) -> bool:
    """Whether a JSON value is of the kind that a setting's annotation names, and allowed."""
    if get_origin(kind) is list:
        (item_kind,) = get_args(kind)
        return isinstance(value, list) and all(_fits(item, item_kind, allowed) for item in value)
    if kind is str:
        # Every output contains the empty text.
        return isinstance(value, str) and value != ""
    if kind is bool:
        return isinstance(value, bool)
    return (_is_int(value) if kind is int else _is_number(value)) and allowed.admits(value)


def _sampling_rule(spec: Field) -> Rule:
    """What a row may say of a sampling setting: what the command line may."""
    allowed = spec.metadata.get("allowed", Allowed())
    words = "a list of texts, none empty" if spec.type == list[str] else describe(spec)
    return Rule(allowed=words, holds=lambda value: _fits(value, spec.type, allowed))


SAMPLING_RULES = {spec.name: _sampling_rule(spec) for spec in fields(SamplingSchema)}
RULES = {**FORM_RULES, **NAME_RULES, **SAMPLING_RULES}


def load_workload(name: str, path: Path, *, limit: int | None = None, key: str = "workload.path") -> Workload:
    """Read, check and cut a workload; raises WorkloadError naming the file and line of the first bad row.

    key  the setting that names the file, for the message when it cannot be read
    """
    rows = take_round_robin(read_rows(path, key=key), limit)
    if not rows:
        raise WorkloadError(f"{path}: there is no prompt in this file")
    return Workload(name=name, rows=rows, hash=hash_of(rows))


def read_rows(path: Path, *, key: str = "workload.path") -> tuple[Row, ...]:
    """Every row of a JSONL file; empty lines, and the byte order mark of some editors, are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot read the prompts ({error}); set {key}") from None
    rows: dict[str, tuple[int, Row]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _parse(line, number, f"{path}:{number}")
        if row.id in rows:
            raise WorkloadError(f"{path}:{number}: id {row.id!r} is already that of line {rows[row.id][0]}")
        rows[row.id] = (number, row)
    return tuple(row for _, row in rows.values())


def take_round_robin(rows: Sequence[Row], limit: int | None) -> tuple[Row, ...]:
    """The first ``limit`` rows, one of each category in turn; order within a category is kept."""
    if limit is None:
        return tuple(rows)
    by_category: dict[str, list[Row]] = {}
    for row in rows:
        by_category.setdefault(row.category, []).append(row)
    taken: list[Row] = []
    for depth in range(max(map(len, by_category.values()), default=0)):
        taken.extend(group[depth] for group in by_category.values() if depth < len(group))
    return tuple(taken[:limit])


def hash_of(rows: Iterable[Row]) -> str:
    """Hash of the rows' content and order; the place of the file does not matter."""
    digest = sha256()
    for row in rows:
        content = [row.id, row.category, row.prompt, row.prompt_ids, row.turns, dict(row.overrides)]
        digest.update(json.dumps(content, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


def _parse(line: str, number: int, where: str) -> Row:
    record = _read_json(line, where)
    if not isinstance(record, dict):
        raise WorkloadError(f"{where}: a line must be a JSON object, got {type(record).__name__}")
    _check_fields(record, where)
    given = [name for name in FORMS if name in record]
    if len(given) != 1:
        raise WorkloadError(f"{where}: exactly one of {', '.join(FORMS)} is needed, got {given or 'none'}")
    if "id" in record and "question_id" in record and record["id"] != record["question_id"]:
        raise WorkloadError(f"{where}: id {record['id']!r} and question_id {record['question_id']!r} differ")
    return Row(
        id=str(record.get("id", record.get("question_id", f"line-{number}"))),
        category=record.get("category") or NO_CATEGORY,
        prompt=record.get("prompt"),
        prompt_ids=tuple(record["prompt_ids"]) if "prompt_ids" in record else None,
        turns=tuple(record["turns"]) if "turns" in record else None,
        overrides={name: record[name] for name in SAMPLING_RULES if name in record},
    )


def _read_json(line: str, where: str) -> object:
    try:
        record = json.loads(line, object_pairs_hook=partial(_object, where=where))
        # Half a surrogate pair is JSON, but no text.
        json.dumps(record, ensure_ascii=False).encode()
    except WorkloadError:
        raise
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise WorkloadError(f"{where}: not text: {half!r} is half of a surrogate pair; write both or none") from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{where}: not JSON that can be read ({error})") from None
    return record


def _object(pairs: Sequence[tuple[str, object]], *, where: str) -> dict[str, object]:
    """A JSON object; raises WorkloadError for a key that it has twice, of which one value would be lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise WorkloadError(f"{where}: {twice!r} is given twice; keep one")
    return record


def _check_fields(record: Mapping[str, object], where: str) -> None:
    """Known fields hold what they should; other fields are left alone unless they look misspelt."""
    for name, value in record.items():
        rule = RULES.get(name)
        if rule is None:
            close = get_close_matches(name, RULES, n=1, cutoff=0.8)
            if close:
                raise WorkloadError(f"{where}: unknown field {name!r}; nearest: {close[0]}")
        elif not rule.holds(value):
            raise WorkloadError(f"{where}: {name} must be {rule.allowed}, got {value!r}")


def workload_of(settings: Mapping[str, object]) -> Workload:
    """The workload of the ``workload`` group's settings; raises WorkloadError."""
    path = Path(str(settings["path"])) if "path" in settings else BUILTIN_PATH
    limit = settings["limit"]
    assert limit is None or isinstance(limit, int), "the schema checks the type"
    return load_workload(str(settings["name"]), path, limit=limit)
