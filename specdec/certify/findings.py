"""What a certificate says: the output's law against the target's own, and the smallest prefix where they differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from specdec.certify.chance import Number
from specdec.certify.tables import Law, Table

# Fractions are compared exactly; a rule with irrational results is compared as floats.
FLOAT_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterexample:
    """The next token after ``prefix`` follows ``found`` instead of ``wanted``."""

    prefix: tuple[int, ...]
    wanted: Law
    found: Law

    @property
    def distance(self) -> Number:
        """Total variation of both laws."""
        return sum(abs(a - b) for a, b in zip(self.wanted, self.found, strict=True)) / 2

    def __str__(self) -> str:
        return (
            f"after {list(self.prefix)} the target's law is ({shown(self.wanted)}), "
            f"the output's is ({shown(self.found)}), total variation {shown((self.distance,))}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One subject in one setting.

    subject         what was judged
    setting         under which tables, draft lengths and number of tokens
    num_cases       outcomes that were enumerated
    counterexample  None: exact
    """

    subject: str
    setting: str
    num_cases: int
    counterexample: Counterexample | None

    @property
    def exact(self) -> bool:
        """Whether no prefix has another law than the target gives it."""
        return self.counterexample is None

    def __str__(self) -> str:
        verdict = "exact" if self.counterexample is None else f"NOT EXACT: {self.counterexample}"
        return f"{self.subject}: {self.setting}; {self.num_cases} outcomes: {verdict}"


def shown(law: Law) -> str:
    """Fractions as they are, other numbers in four decimals."""
    return ", ".join(str(x) if isinstance(x, Fraction | int) else f"{x:.4f}" for x in law)


def differs(wanted: Law, found: Law) -> bool:
    """Whether two laws differ: exactly, or beyond rounding where one has floats."""
    exact = all(isinstance(x, Fraction | int) for x in (*wanted, *found))
    return wanted != found if exact else max(abs(a - b) for a, b in zip(wanted, found, strict=True)) > FLOAT_TOLERANCE


def smallest_counterexample(
    joint: Mapping[tuple[int, ...], Number], target: Table, root: tuple[int, ...], num_tokens: int
) -> Counterexample | None:
    """Among the shortest prefixes with a wrong next-token law the one that is farthest off; None if all are right.

    joint  probability of every sequence of ``num_tokens`` tokens after ``root``; absent ones have none
    """
    masses: dict[tuple[int, ...], Number] = {}
    for tokens, weight in joint.items():
        for length in range(num_tokens + 1):
            masses[tokens[:length]] = masses.get(tokens[:length], Fraction(0)) + weight
    for length in range(num_tokens):
        wrong = []
        for prefix in product(range(target.vocab_size), repeat=length):
            mass = masses.get(prefix, 0)
            if not mass > 0:
                continue
            ids = range(target.vocab_size)
            found = tuple(masses.get((*prefix, i), Fraction(0)) / mass for i in ids)
            wanted = target.law((*root, *prefix))
            if differs(wanted, found):
                wrong.append(Counterexample(prefix=prefix, wanted=wanted, found=found))
        if wrong:
            return max(wrong, key=lambda example: example.distance)
    return None
