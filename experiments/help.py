"""--help: groups, options and every key with its default and what it allows; read from conf/ and the schemas.

Nothing is composed and no model code is imported, so that help is there at once.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING as MANDATORY
from omegaconf import OmegaConf

from experiments.mistakes import describe
from experiments.schemas import SCHEMAS

ADDED_WITH_PLUS = ("experiment", "sweep")
HIDDEN = ("_target_",)


def help_text(conf: Path, config: str, *, command: str) -> str:
    """What ``command`` can be told, given its primary configuration ``conf/CONFIG.yaml``."""
    primary = OmegaConf.load(conf / f"{config}.yaml")
    chosen = dict(_chosen_options(primary.defaults))
    lines = [
        f"usage: {command} [KEY=VALUE ...] [GROUP=OPTION ...] [-m for a sweep over KEY=A,B,C]",
        "",
        "groups (the default is marked with *):",
    ]
    for group, default in [*chosen.items(), *((name, "") for name in ADDED_WITH_PLUS)]:
        lines += _group_lines(conf / group, group, default)
    lines += ["", "keys:"]
    for group in chosen:
        lines += _key_lines(conf / group, group)
    lines += [f"  {key}={_shown(value)}" for key, value in primary.items() if key not in ("defaults", "hydra")]
    lines += ["", "Hydra's own: --cfg job prints the configuration, --hydra-help lists the rest."]
    return "\n".join(lines)


def _chosen_options(defaults: Any) -> Iterator[tuple[str, str]]:
    for entry in defaults:
        if isinstance(entry, str):
            continue
        ((group, option),) = entry.items()
        if not group.startswith("override "):
            yield group, option if isinstance(option, str) else option[0]


def _group_lines(folder: Path, group: str, default: str) -> list[str]:
    plus = "+" if group in ADDED_WITH_PLUS else ""
    return [
        f"  {plus}{group}={path.stem}{'*' if path.stem == default else ''}".ljust(28) + _comment(path)
        for path in sorted(folder.glob("*.yaml"))
    ]


def _comment(path: Path) -> str:
    """The first sentence of an option: its first comment that is not for Hydra."""
    comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    return next((line for line in comments if not line.startswith("@package")), "")


def _key_lines(folder: Path, group: str) -> list[str]:
    """Keys of every option of a group; a key that several options share is listed once with all their names."""
    options: dict[str, list[str]] = {}
    paths = sorted(folder.glob("*.yaml"))
    for path in paths:
        for spec in _fields_of(path):
            line = f"  {group}.{spec.name}={_default(spec)}".ljust(44) + describe(spec)
            options.setdefault(line, []).append(path.stem)
    return [
        line if len(names) == len(paths) else f"{line}  ({', '.join(names)})" for line, names in options.items()
    ]


def _fields_of(path: Path) -> list[Field]:
    for entry in OmegaConf.load(path).get("defaults", []):
        for key, name in entry.items() if not isinstance(entry, str) else ():
            schema = SCHEMAS.get((key.removeprefix("/schema/").partition("@")[0], name))
            if schema is not None:
                return [spec for spec in fields(schema) if spec.name not in HIDDEN]
    return []


def _default(spec: Field) -> str:
    if spec.default_factory is not MISSING:
        return _shown(spec.default_factory())
    return "???" if spec.default == MANDATORY else _shown(spec.default)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value).replace(" ", "")
