"""Every way that a random program can go, with exact probabilities; knows nothing of decoding.

The program is an ordinary function that makes its random choices through ``Chance.choose``. It is run once for every
sequence of choices, so it must be deterministic otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

from specdec.errors import UnsupportedError

Number = Fraction | float | int
Result = TypeVar("Result")


class Chance:
    """The choices of one run: those of ``script`` first, then the first that is possible."""

    def __init__(self, script: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self._script = script
        self._made: list[tuple[int, tuple[int, ...]]] = []
        self.weight: Number = Fraction(1)

    def choose(self, weights: Sequence[Number]) -> int:
        """An index, with probability proportional to its weight."""
        options = tuple(i for i, weight in enumerate(weights) if weight > 0)
        assert options, "a choice without any weight"
        turn = 0
        if len(self._made) < len(self._script):
            turn, before = self._script[len(self._made)]
            if before != options:
                raise UnsupportedError(
                    "the same choices led to another run: something draws random numbers outside of its sampling "
                    "view, or keeps state elsewhere, and cannot be enumerated"
                )
        self._made.append((turn, options))
        if len(options) > 1:
            self.weight = self.weight * weights[options[turn]] / sum(weights)
        return options[turn]

    def toss(self, chance: Number) -> bool:
        """True with this probability."""
        return self.choose((1 - chance, chance)) == 1

    def following(self) -> list[tuple[int, tuple[int, ...]]] | None:
        """The script of the next run, or None after the last one."""
        made = self._made
        while made:
            turn, options = made.pop()
            if turn + 1 < len(options):
                return [*made, (turn + 1, options)]
        return None


def every_run(program: Callable[[Chance], Result]) -> Iterator[tuple[Number, Result]]:
    """Probability and result of every run; the probabilities sum to 1."""
    script: list[tuple[int, tuple[int, ...]]] | None = []
    while script is not None:
        chance = Chance(script)
        result = program(chance)
        yield chance.weight, result
        script = chance.following()
