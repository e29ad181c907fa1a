"""Every run of a random program, with exact probabilities; and fractions found again in floats."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
import torch

from specdec.certify.chain import part_above, share_below, toss_one
from specdec.certify.chance import Chance, every_run
from specdec.certify.tables import law_of, recovered
from specdec.errors import UnsupportedError

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def test_every_run_comes_once_with_its_probability() -> None:
    def program(chance: Chance) -> tuple[int, ...]:
        first = chance.choose([HALF, 0, HALF])
        return (first,) if first else (first, chance.choose([1, 2]), chance.toss(THIRD))

    found = Counter()
    for weight, result in every_run(program):
        found[result] += weight
    sixth = Fraction(1, 6)
    assert found == {
        (0, 0, 0): sixth * 2 / 3,
        (0, 0, 1): sixth / 3,
        (0, 1, 0): THIRD * 2 / 3,
        (0, 1, 1): THIRD / 3,
        (2,): HALF,
    }


def test_a_certain_choice_does_not_branch() -> None:
    assert list(every_run(lambda chance: (chance.choose([0, 3]), chance.toss(1), chance.toss(0)))) == [(1, (1, 1, 0))]


def test_a_program_that_differs_between_runs_is_refused() -> None:
    counter = itertools.count()

    def program(chance: Chance) -> None:
        chance.choose([HALF, HALF] if next(counter) == 0 else [HALF, 0, HALF])

    with pytest.raises(UnsupportedError, match="cannot be enumerated"):
        list(every_run(program))


def test_one_uniform_is_below_the_larger_chance_whenever_it_is_below_the_smaller() -> None:
    runs = {tuple(passed): weight for weight, passed in every_run(lambda chance: toss_one(chance, [HALF, THIRD]))}
    assert runs == {(True, True): THIRD, (True, False): Fraction(1, 6), (False, False): HALF}


def test_shares_of_a_uniform() -> None:
    assert share_below(HALF, Fraction(1, 4), Fraction(3, 4)) == HALF
    assert share_below(THIRD, HALF, Fraction(1)) == 0
    assert part_above(law_of("1/4 1/4 1/2"), THIRD) == (0, Fraction(1, 6), HALF)


def test_fractions_are_found_again_in_floats_and_others_stay_floats() -> None:
    law = law_of("1/3 1/7 11/21")
    assert recovered(torch.tensor([float(x) for x in law])) == law
    other = torch.tensor([0.3, 0.7], dtype=torch.float64) ** 0.5
    assert recovered(other) == tuple(other.tolist())
