"""Values of a configuration against the types that a class or function from elsewhere declares; knows no option.

OmegaConf judges and converts, as it does for the options that ship. Annotations that it does not know (protocols,
callables, pairs) are left to the class itself.
"""

import typing
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from experiments.mistakes import kind_name
from specdec.errors import ConfigError


def declared(maker: Callable[..., object]) -> Mapping[str, Any]:
    """Types of the parameters of ``maker`` by name; empty when an annotation names what only a type checker sees."""
    try:
        return typing.get_type_hints(maker.__init__ if isinstance(maker, type) else maker)
    except (NameError, TypeError):
        return {}


def checked(value: Any, annotation: Any, key: str) -> Any:
    """``value`` converted to the type ``annotation`` as an option that ships would be; raises ConfigError.

    A value that holds a class to be made, and an annotation that OmegaConf does not know, pass as they are.
    """
    if _is_made_later(value):
        return value
    if typing.get_origin(annotation) is Literal:
        if value not in typing.get_args(annotation):
            raise ConfigError(f"{key} must be {kind_name(annotation)}, got {value!r}")
        return value
    if _has_places(annotation):
        return value
    try:
        node = OmegaConf.structured(make_dataclass("Setting", [("value", annotation)]))
    except OmegaConfBaseException:
        return value
    try:
        node.value = value
    except ValidationError:
        raise ConfigError(f"{key} must be {kind_name(annotation)}, got {value!r}") from None
    return OmegaConf.to_container(node)["value"]


def _is_made_later(value: Any) -> bool:
    """Whether something in it has a ``_target_``, or is text that OmegaConf would read as more than text."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_is_made_later, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_made_later, value))
    return isinstance(value, str) and ("${" in value or value == "???")


def _has_places(annotation: Any) -> bool:
    """Whether it is a tuple whose places have types of their own, of which OmegaConf reads the first only."""
    arguments = typing.get_args(annotation)
    return typing.get_origin(annotation) is tuple and arguments[1:] != (Ellipsis,)
