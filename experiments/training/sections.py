"""Trainer configurations from plain nested mappings; knows no setting."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specdec.errors import ConfigError


def from_sections(cls: type, sections: Mapping[str, type], raw: Mapping[str, Any], *, where: str) -> Any:
    """A dataclass whose fields ``sections`` are dataclasses themselves; absent ones take their defaults.

    Raises ConfigError naming an unknown key.
    """
    values = dict(raw)
    made = {name: _section(kind, values.pop(name, {}), f"{where}.{name}") for name, kind in sections.items()}
    return _section(cls, {**values, **made}, where)


def _section(cls: type, raw: Mapping[str, Any], where: str) -> Any:
    known = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(set(raw) - known):
        raise ConfigError(f"{unknown[0]} is no setting of {where}; known are {', '.join(sorted(known))}")
    return cls(**raw)
