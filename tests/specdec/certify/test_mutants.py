"""Every wrong rule is found; the numbered ones with exactly the output and distance that are known."""

from fractions import Fraction

import pytest

from specdec.certify.findings import Counterexample
from specdec.certify.mutants import Mutant, all_mutants

NUMBERED = {
    "M1": ("1/2 1/6 1/3", "1/6"),
    "M2": ("1/3 4/9 2/9", "1/6"),
    "M4": ("5/12 13/36 2/9", "1/12"),
    "M5": ("9/20 23/60 1/6", "1/20"),
    "M6": ("5/8 3/8 0", "1/6"),
    "M7": ("1/4 1/4 1/2", "1/3"),
    "M8": ("3/4 1/4 0", "1/4"),
}
MUTANTS = all_mutants()


def counterexample_of(number: str) -> Counterexample:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name.startswith(f"{number} ")]
    return mutant.finding().counterexample


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_wrong_rule_is_found(mutant: Mutant) -> None:
    finding = mutant.finding()
    assert not finding.exact
    assert finding.counterexample.distance > 0
    assert "NOT EXACT" in str(finding)


def test_there_are_at_least_fifteen_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15


@pytest.mark.parametrize("number", NUMBERED)
def test_numbered_mutant_has_the_known_output(number: str) -> None:
    law, distance = NUMBERED[number]
    example = counterexample_of(number)
    assert example.found == tuple(Fraction(x) for x in law.split())
    assert example.distance == Fraction(distance)
    assert example.wanted == (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
    assert example.prefix == ((2,) if number == "M8" else ())


def test_irrational_mutant_is_shown_in_decimals() -> None:
    example = counterexample_of("M3")
    assert "(0.3770, 0.3575, 0.2656)" in str(example)
    assert float(example.distance) == pytest.approx(0.123, abs=5e-4)
