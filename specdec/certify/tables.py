"""Small targets and drafts as tables of fractions; a law depends on the newest known token only."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from specdec.certify.chance import Number

Law = tuple[Number, ...]

# Of the laws of these tables; larger ones come near every number.
LARGEST_DENOMINATOR = 100
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Table:
    """Laws by newest token: row ``token % len(rows)``; a single row is an i.i.d. table."""

    rows: tuple[Law, ...]

    @property
    def vocab_size(self) -> int:
        """Tokens of a law."""
        return len(self.rows[0])

    def law(self, tokens: Sequence[int]) -> Law:
        """Law of the token after ``tokens``, which must not be empty."""
        return self.rows[tokens[-1] % len(self.rows)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A target, and a draft model for it."""

    name: str
    target: Table
    draft: Table


def law_of(text: str) -> Law:
    """Fractions separated by spaces; raises ValueError unless they sum to 1."""
    law = tuple(Fraction(word) for word in text.split())
    if sum(law) != 1 or min(law) < 0:
        raise ValueError(f"not a law: {text}")
    return law


def table(*rows: str) -> Table:
    """A table of laws given as text."""
    return Table(tuple(law_of(row) for row in rows))


def argmax_table(draft: Table) -> Table:
    """The most probable token of every row with certainty, the lowest id on ties."""
    ids = range(draft.vocab_size)
    return Table(tuple(tuple(Fraction(int(i == row.index(max(row)))) for i in ids) for row in draft.rows))


TWO = Pair(name="two tokens, i.i.d.", target=table("1/3 2/3"), draft=table("2/3 1/3"))
IID = Pair(name="three tokens, i.i.d.", target=table("1/2 1/3 1/6"), draft=table("1/4 1/4 1/2"))
# Tokens that cannot come under either law, laws that are equal, and laws that are nearly disjoint.
BIGRAM = Pair(
    name="three tokens, bigram",
    target=table("1/2 1/3 1/6", "0 1/4 3/4", "1/3 1/3 1/3"),
    draft=table("1/4 1/4 1/2", "3/4 1/4 0", "1/3 1/3 1/3"),
)
PAIRS = (IID, BIGRAM)


def recovered(law_V: torch.Tensor) -> Law:
    """Fractions with small denominators that a row of floats stands for, or the floats if there are none."""
    values = law_V.double().tolist()
    found = tuple(Fraction(value).limit_denominator(LARGEST_DENOMINATOR) for value in values)
    near = all(abs(float(fraction) - value) < ROUNDING for fraction, value in zip(found, values, strict=True))
    return found if near and sum(found) == 1 else tuple(values)
