"""--help: groups, options and every key with its default and what it allows; read from conf/ and the schemas.

Nothing is composed and no model code is imported, so that help is there at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from experiments.mistakes import describe
from experiments.plugins import Plugin

HIDDEN = ("_target_",)
KEY_WIDTH = 44


def help_text(
    conf: Path, config: str, *, command: str, added: Sequence[str] = (), plugins: Sequence[Plugin] = ()
) -> str:
    """What ``command`` can be told, given its primary configuration ``conf/CONFIG.yaml``.

    added    groups outside of the defaults list, which are added with ``+GROUP=OPTION``
    plugins  of installed packages, which add options
    """
    primary = OmegaConf.load(conf / f"{config}.yaml")
    chosen = dict(_chosen_options(primary.defaults))
    lines = [
        f"usage: {command} [KEY=VALUE ...] [GROUP=OPTION ...] [-m for a sweep over KEY=A,B,C]",
        "",
        "groups (the default is marked with *):",
    ]
    for group, default in chosen.items():
        lines += _group_lines(conf / group, group, default)
    for group in added:
        lines += _group_lines(conf / group, f"+{group}", "")
    if plugins:
        lines += ["", "plug-ins of installed packages, and the options that they add:"]
        lines += [f"  {plugin}" for plugin in plugins]
    lines += ["", "keys:"]
    for group in chosen:
        lines += _key_lines(conf / group, group)
    meanings = _meanings(conf / f"{config}.yaml")
    for key, value in primary.items():
        if key not in ("defaults", "hydra"):
            lines.append(f"  {key}={_shown(value)}".ljust(KEY_WIDTH) + "  " + meanings[key])
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
    return [
        f"  {group}={path.stem}{'*' if path.stem == default else ''}".ljust(28) + _comment(path)
        for path in sorted(folder.glob("*.yaml"))
    ]


def _comment(path: Path) -> str:
    """The first sentence of an option: its first comment that is not for Hydra."""
    comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    return next((line for line in comments if not line.startswith("@package")), "")


def _key_lines(folder: Path, group: str) -> list[str]:
    """Keys of every option of a group; a line that several options share is given once with all their names."""
    options: dict[str, list[str]] = {}
    paths = sorted(folder.glob("*.yaml"))
    for path in paths:
        # Of loggers there may be several, each below its own name.
        prefix = f"{group}.{path.stem}." if group == "logger" else f"{group}."
        for line in _lines_of(_settings(path), prefix):
            options.setdefault(line, []).append(path.stem)
    return [line if len(names) == len(paths) else f"{line}  ({', '.join(names)})" for line, names in options.items()]


def _meanings(path: Path) -> dict[str, str]:
    """The comment line right above each key of a primary configuration, empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        line.partition(":")[0]: above[2:] if above.startswith("# ") else ""
        for above, line in pairwise(["", *lines])
        if line[:1].isalpha()
    }


def _settings(path: Path) -> DictConfig:
    """An option's schema with the option's own values; empty for an option without a schema."""
    content = OmegaConf.load(path)
    settings = OmegaConf.create()
    for entry in content.pop("defaults", []):
        for key, name in entry.items() if not isinstance(entry, str) else ():
            if key.startswith("/schema/"):
                settings = ConfigStore.instance().load(f"{key[1:].partition('@')[0]}/{name}.yaml").node.copy()
    return OmegaConf.merge(settings, content) if settings else settings


def _lines_of(node: DictConfig, prefix: str) -> Iterator[str]:
    kind = OmegaConf.get_type(node)
    for spec in fields(kind) if is_dataclass(kind) else ():
        key = f"{prefix}{spec.name}"
        if OmegaConf.is_missing(node, spec.name):
            yield f"  {key}=???".ljust(KEY_WIDTH) + "  " + describe(spec)
        elif isinstance(node[spec.name], DictConfig) and is_dataclass(OmegaConf.get_type(node[spec.name])):
            yield from _lines_of(node[spec.name], f"{key}.")
        elif spec.name not in HIDDEN:
            yield f"  {key}={_shown(node[spec.name])}".ljust(KEY_WIDTH) + "  " + describe(spec)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value).replace(" ", "")
