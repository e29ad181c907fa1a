"""Checks of configuration values with one wording; knows nothing of any particular option.

Every function returns the value that it checked, so that a check can stand in an assignment.
"""

import sys
from collections.abc import Sequence

from specdec.errors import ConfigError

LARGEST = sys.float_info.max
"""An integer beyond it is no number to compute with: it cannot become a float."""


def _fail(name: str, allowed: str, got: object, where: str) -> ConfigError:
    suffix = f" (conf: {where})" if where else ""
    return ConfigError(f"{name} must be {allowed}, got {got!r}{suffix}")


def integer(name: str, value: object, *, low: int, high: int | None = None, where: str = "") -> int:
    """An ``int`` (not ``bool``) within ``[low, high]``; raises ConfigError otherwise."""
    span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fail(name, span, value, where)
    if value < low or (high is not None and value > high):
        raise _fail(name, span, value, where)
    return value


def positive_int(name: str, value: object, *, where: str = "") -> int:
    """An ``int`` of at least 1; raises ConfigError otherwise."""
    return integer(name, value, low=1, where=where)


def number(name: str, value: object, *, low: float, high: float | None = None, where: str = "") -> float:
    """A finite ``int`` or ``float`` within ``[low, high]``; raises ConfigError otherwise."""
    span = f"a number of at least {low}" if high is None else f"a number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _fail(name, span, value, where)
    if not low <= value <= (LARGEST if high is None else high):
        raise _fail(name, span, value, where)
    return value


def flag(name: str, value: object, *, where: str = "") -> bool:
    """A ``bool``; raises ConfigError otherwise."""
    if not isinstance(value, bool):
        raise _fail(name, "true or false", value, where)
    return value


def one_of(name: str, value: object, allowed: Sequence[object], *, where: str = "") -> object:
    """A member of ``allowed``; raises ConfigError otherwise."""
    if value not in allowed:
        raise _fail(name, "one of " + ", ".join(str(a) for a in allowed), value, where)
    return value
