"""Settings of classes from elsewhere against the types that they declare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from experiments.annotations import checked, declared
from experiments.build import instantiate
from specdec.errors import ConfigError

PAIR = "experiments.examples.pair_drafter.PairConfig"


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    inner: Any = None
    sizes: "tuple[int, ...]" = (1,)


def maker(window: int, label: "str | None" = None) -> tuple[int, str | None]:
    return window, label


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        (int, 3, 3),
        (float, 1, 1.0),
        (bool, True, True),
        (str, 3, "3"),
        (Optional[int], None, None),  # noqa: UP045
        (int | str, "x", "x"),
        (tuple[int, ...], [1, 2], [1, 2]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Literal["a", "b"], "b", "b"),
        (Colour, "RED", Colour.RED),
        (Path, "x", Path("x")),
        (tuple[int, str], [1, "a"], [1, "a"]),
        (Sequence[int], "anything", "anything"),
        (Callable, "anything", "anything"),
        (int, {"_target_": "made.Later"}, {"_target_": "made.Later"}),
        (str, "${left} as it is", "${left} as it is"),
    ],
)
def test_values_are_converted_as_those_of_options_are(annotation: Any, given: Any, taken: Any) -> None:
    found = checked(given, annotation, "key")
    assert found == taken and type(found) is type(taken)


@pytest.mark.parametrize(
    ("annotation", "given", "said"),
    [
        (int, "abc", "key must be an integer, got 'abc'"),
        (int, 1.5, "key must be an integer, got 1.5"),
        (int, None, "key must be an integer, got None"),
        (int | None, "abc", "key must be an integer or null, got 'abc'"),
        (Optional[float], "abc", "key must be a number or null, got 'abc'"),  # noqa: UP045
        (bool, "abc", "key must be true or false, got 'abc'"),
        (str, [1], "key must be text, got [1]"),
        (tuple[int, ...], ["a"], "key must be a list such as [a,b] (each an integer), got ['a']"),
        (list, 3, "key must be a list such as [a,b], got 3"),
        (dict[str, int], 3, "key must be a mapping, got 3"),
        (Literal["a", "b"], "c", "key must be one of a, b, got 'c'"),
        (Colour, "GREEN", "key must be one of RED, BLUE, got 'GREEN'"),
        (Holder, 3, "key must be a Holder, got 3"),
    ],
)
def test_values_of_another_type_are_refused_by_their_key(annotation: Any, given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(given, annotation, "key")
    assert str(refused.value) == said


def test_classes_and_functions_declare_types_also_as_text() -> None:
    assert declared(Holder)["sizes"] == tuple[int, ...]
    assert declared(maker) == {"window": int, "label": str | None, "return": tuple[int, str | None]}


def test_instantiate_names_the_key_that_was_written() -> None:
    with pytest.raises(ConfigError, match=r"^drafter\.params\.window must be an integer, got 'abc'$"):
        instantiate({"_target_": PAIR, "params": {"window": "abc"}}, "drafter")
    with pytest.raises(ConfigError, match=r"^drafter\.window must be an integer, got 2\.5$"):
        instantiate({"_target_": PAIR, "window": 2.5}, "drafter")
    wrapped = {"_target_": "drafters.ngram.NgramConfig", "params": {"max_ngram": "x"}}
    with pytest.raises(ConfigError, match=r"^drafter\.wrapped\.params\.max_ngram must be an integer, got 'x'$"):
        instantiate({"_target_": "drafters.adaptive.AdaptiveConfig", "wrapped": wrapped}, "drafter")
