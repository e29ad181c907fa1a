"""The printed table and the help text: nothing that was not observed looks like a number."""

from experiments import schemas
from experiments.app import CONF
from experiments.help import help_text
from experiments.table import interval, lossless_text


def test_interval_shows_value_and_range() -> None:
    assert interval({"value": 1.5, "low": 1.25, "high": 2.0, "n": 4}) == "1.500 [1.250, 2.000]"


def test_value_without_a_range_stands_alone() -> None:
    assert interval({"value": 1.5, "low": None, "high": None, "n": 1}) == "1.500"


def test_unobserved_metric_is_a_dash() -> None:
    assert interval({"value": None, "low": None, "high": None, "n": 0}) == "-"


def test_lossless_has_three_answers() -> None:
    assert [lossless_text(value) for value in (True, False, None)] == ["yes", "no", "not compared"]


def test_help_lists_every_option_and_key_with_what_is_allowed() -> None:
    schemas.register()
    text = help_text(CONF, "config", command="run", added=("experiment", "sweep"))
    for path in CONF.glob("*/*.yaml"):
        if path.parent.name != "trainer":
            assert f"{path.parent.name}={path.stem}" in text
    assert "drafter=nextn*" in text
    assert "engine.repeats=3" in text and "an integer, at least 1" in text
    assert "require_lossless=false" in text
