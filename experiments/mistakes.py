"""A user's mistake in one line: refusals of Hydra and OmegaConf, and of the checker below, in one wording."""

import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from experiments.extras import LAUNCHERS, install
from experiments.schemas import ROOTS, SCHEMAS, AdaptiveSchema, Allowed, CascadeSchema, RunSchema
from specdec.errors import ConfigError

# Groups outside of the defaults list are added, not overridden.
MISSING_PLUS = re.compile(r"To append to your default list use \+(\S+)")
AMBIGUOUS = re.compile(r"Ambiguous value for argument '([^']+)'")
# Groups with an option that takes any class, and so any path of one.
OPEN_GROUPS = ("drafter", "target")
# What the options of conf/drafter wrap; anything else is added.
WRAPPED_BY_DEFAULT = (".wrapped", ".drafters.a", ".drafters.b")
# Groups for which people write options.
OWN_FILES = ("drafter", "target", "verifier", "workload", "experiment", "sweep")
KIND_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def explain(error: HydraException | OmegaConfBaseException) -> ConfigError:
    """The ConfigError that says in one line what was wrong with the command line or a configuration file."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return ConfigError(_unknown_key(cause.full_key, cause.object_type))
    if isinstance(cause, ValidationError) and cause.full_key:
        return ConfigError(_wrong_type(cause.full_key, cause.object_type, _got(error, cause)))
    if isinstance(error, MissingConfigException):
        return ConfigError(_unknown_option(error))
    if missing_plus := MISSING_PLUS.search(str(error)):
        written = missing_plus.group(1)
        return ConfigError(f"{written} needs a plus sign before it: write +{written}")
    if several := AMBIGUOUS.search(str(error)):
        return ConfigError(_several_values(several.group(1)))
    if isinstance(error, OverrideParseException):
        return ConfigError(f"cannot read the override {error.override!r}: {_one_line(str(error).splitlines()[0])}")
    return ConfigError(_one_line(str(error) or str(cause)))


def check(config: DictConfig) -> None:
    """Raise ConfigError for the first missing, unknown or disallowed value of a composed configuration."""
    root = OmegaConf.get_type(config)
    for name in (spec.name for spec in fields(root if root in ROOTS else RunSchema)):
        if OmegaConf.is_missing(config, name):
            raise ConfigError(f"{name} must be set: choose an option of the group, such as {name}=NAME")
    _check_wrapped(config.drafter)
    check_part(config)
    _check_drafter_class(config.drafter)


def check_part(node: DictConfig, prefix: str = "") -> None:
    """``check`` for a part of a configuration whose keys begin with ``prefix``."""
    for key, value, spec in settings_of(node, prefix):
        _check_value(key, value, spec)


def settings_of(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any, Field]]:
    """Every value that a schema describes: full key, value, and the schema's field."""
    kind = OmegaConf.get_type(config)
    specs = {spec.name: spec for spec in fields(kind)} if kind in {*ROOTS, *SCHEMAS.values()} else {}
    for name in config if specs else ():
        if name not in specs and (prefix or name != "hydra"):
            raise ConfigError(_unknown_key(f"{prefix}{name}", kind))
    for spec in specs.values():
        key = f"{prefix}{spec.name}"
        if OmegaConf.is_missing(config, spec.name):
            raise ConfigError(f"{key} must be set")
        value = config[spec.name]
        nested = dict(_schemas_below(key, value))
        for inner, node in nested.items():
            yield from settings_of(node, f"{inner}.")
        if not nested:
            yield key, value, spec


def _schemas_below(key: str, value: Any) -> Iterator[tuple[str, DictConfig]]:
    """Nodes with keys of their own: a group, an option of one within another, and a mapping that holds some."""
    if not isinstance(value, DictConfig):
        return
    if OmegaConf.get_type(value) in SCHEMAS.values():
        yield key, value
        return
    for name in value:
        if not OmegaConf.is_missing(value, name):
            yield from _schemas_below(f"{key}.{name}", value[name])


def nearest(name: str, candidates: Iterable[str]) -> str:
    """``"; nearest: X"`` for the candidate most like ``name``, or nothing if none is alike."""
    found = get_close_matches(name, sorted(set(candidates)), n=1)
    return f"; nearest: {found[0]}" if found else ""


def describe(spec: Field) -> str:
    """What a field takes, for example ``an integer, 1 to 31``."""
    kind, allowed = kind_name(spec.type), spec.metadata.get("allowed")
    if allowed is not None and allowed.choices:
        return f"{allowed} or null" if types.NoneType in _kinds(spec.type) else str(allowed)
    return kind if allowed is None or str(allowed) == "any value" else f"{kind}, {allowed}"


def kind_name(annotation: Any) -> str:
    """A type in words, for example ``an integer or null``."""
    return " or ".join(dict.fromkeys(_kind_name(kind) for kind in _kinds(annotation)))


def _kind_name(kind: Any) -> str:
    origin = typing.get_origin(kind) or kind
    if kind in KIND_NAMES:
        return KIND_NAMES[kind]
    if kind is types.NoneType:
        return "null"
    if origin in (list, tuple):
        inner = [_kind_name(each) for each in typing.get_args(kind) if each is not Ellipsis]
        return "a list such as [a,b]" + (f" (each {inner[0]})" if inner and inner[0] in KIND_NAMES.values() else "")
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(kind.__members__)
    return "a mapping" if origin in (dict, Any) or not isinstance(kind, type) else f"a {kind.__name__}"


def _check_value(key: str, value: Any, spec: Field) -> None:
    allowed: Allowed | None = spec.metadata.get("allowed")
    if allowed is None:
        return
    for item in value if isinstance(value, ListConfig) else [value]:
        if not allowed.admits(item):
            raise ConfigError(f"{key} must be {describe(spec)}, got {item!r}")


def _check_drafter_class(node: DictConfig, key: str = "drafter") -> None:
    """Raise ConfigError for another class under the settings of a drafter that ships, wrapped ones included."""
    names = {schema: name for (group, name), schema in SCHEMAS.items() if group == "drafter"}
    kind = OmegaConf.get_type(node)
    own = kind()._target_ if kind in names else MISSING
    if own not in (MISSING, node._target_):
        option = "drafter" if key == "drafter" else f"drafter@{key}"
        raise ConfigError(
            f"{key}._target_ of {option}={names[kind]} is {own}, got {node._target_}: "
            f"write {option}=custom {key}._target_={node._target_}"
        )
    for name in node:
        if not OmegaConf.is_missing(node, name):
            for inner, below in _schemas_below(f"{key}.{name}", node[name]):
                _check_drafter_class(below, inner)


def _check_wrapped(node: DictConfig, key: str = "drafter") -> None:
    """Raise ConfigError for the mere name of a drafter where one is wrapped."""
    kind = OmegaConf.get_type(node)
    if kind is CascadeSchema:
        key, node = f"{key}.drafters", node.drafters
    elif kind is not AdaptiveSchema:
        return
    for name in node if kind is CascadeSchema else ("wrapped",):
        full_key = f"{key}.{name}"
        if OmegaConf.is_missing(node, name):
            continue
        value = node[name]
        if isinstance(value, str):
            plus = "" if full_key.endswith(WRAPPED_BY_DEFAULT) else "+"
            raise ConfigError(f"{full_key} must be a drafter, got {value!r}: write {plus}drafter@{full_key}={value}")
        if isinstance(value, DictConfig):
            _check_wrapped(value, full_key)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return typing.get_args(annotation)
    return (annotation,)


def _field_of(schema: Any, name: str) -> Field | None:
    known = fields(schema) if is_dataclass(schema) else ()
    return next((spec for spec in known if spec.name == name), None)


def _known_keys() -> set[str]:
    keys = {
        f"logger.{name}.{spec.name}" if group == "logger" else f"{group}.{spec.name}"
        for (group, name), schema in SCHEMAS.items()
        for spec in fields(schema)
    }
    return keys | {spec.name for root in ROOTS for spec in fields(root)} | {"experiment", "sweep", "launcher"}


def _unknown_key(full_key: str, schema: Any) -> str:
    prefix, _, name = full_key.rpartition(".")
    own = [spec.name for spec in fields(schema)] if prefix and is_dataclass(schema) else []
    close = get_close_matches(name, own, n=1)
    # What other options of the group have is of no use here.
    group = f"{prefix.partition('.')[0]}."
    others = {key for key in _known_keys() - {full_key} if not (own and key.startswith(group))}
    hint = f"; nearest: {prefix}.{close[0]}" if close else nearest(full_key, others)
    has = f" (this {prefix} has {', '.join(key for key in own if not key.startswith('_'))})" if own else ""
    return f"unknown key {full_key}{hint}{has}"


def _wrong_type(full_key: str, schema: Any, got: str) -> str:
    spec = _field_of(schema, full_key.rpartition(".")[2])
    if spec is None:
        return f"{full_key} cannot be {got}"
    return f"{full_key} must be {describe(spec)}, got {got}"


def _got(error: Exception, cause: Exception) -> str:
    text = str(error)
    if "merging override" in text:
        return repr(text.rpartition("override ")[2].partition("=")[2])
    return _one_line(str(cause).splitlines()[0])


def _unknown_option(error: MissingConfigException) -> str:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    options = [str(name) for name in error.options or ()]
    if not group:
        return _one_line(str(error).splitlines()[0])
    if group == "hydra/launcher" and option in LAUNCHERS:
        return f"hydra/launcher={option} needs a plug-in of Hydra that is not installed: {install(LAUNCHERS[option])}"
    if group in OPEN_GROUPS and "." in option:
        return f"{group}={option}: a class is given as {group}=custom {group}._target_={option}"
    listed = f" (options: {', '.join(options)})" if options else ""
    near = nearest(option, options)
    own = "" if near or group not in OWN_FILES else "; a file of your own needs --config-dir FOLDER"
    return f"{group}={option}: there is no such option{near}{own}{listed}"


def _several_values(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{override}: to run once for each of these values add -m (one value that is a list: {key}=[{value}])"


def _one_line(text: str) -> str:
    return " ".join(text.split())
