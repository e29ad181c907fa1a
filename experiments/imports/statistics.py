"""What another engine says of its speculative decoding, as counts; knows no engine's words and no formula.

Formats are taken from the engines' documentation and sources, untested against a live engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specdec.errors import SpecDecError

ROUNDED_ABOVE = 999
"""Steps up to which a rate of three digits gives its count exactly."""


class ImportedFileError(SpecDecError, ValueError):
    """A file holds no statistics that can be imported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Counts over a stretch of decoding in which many requests take part.

    where        file and line
    num_drafts   steps that drafted; None where it cannot be told
    num_drafted  drafted tokens
    num_accepted accepted drafts
    accepted_at  steps that accepted positions 1, 2, ...; None where it cannot be told
    """

    where: str
    num_drafts: int | None
    num_drafted: int
    num_accepted: int
    accepted_at: tuple[int, ...] | None = None

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """Steps that accepted 0, 1, 2, ... drafts; None unless every step drafted equally many."""
        if self.num_drafts is None or self.accepted_at is None:
            return None
        if self.num_drafted != self.num_drafts * len(self.accepted_at):
            return None
        reached = (self.num_drafts, *self.accepted_at, 0)
        counts = tuple(a - b for a, b in zip(reached, reached[1:], strict=False))
        return counts if min(counts) >= 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestCounts:
    """Counts of one request.

    num_output   tokens that it produced, the first included; None where it is not said
    num_steps    verify steps
    num_drafted  drafted tokens
    num_accepted accepted drafts
    histogram    steps that accepted 0, 1, 2, ... drafts; None where it is not said
    """

    id: str
    where: str
    num_prompt: int | None
    num_output: int | None
    num_steps: int
    num_drafted: int
    num_accepted: int
    histogram: tuple[int, ...] | None
    finish_reason: str

    @property
    def num_draft_tokens(self) -> int | None:
        """Drafted tokens a step, where every step drafted equally many."""
        length, rest = divmod(self.num_drafted, self.num_steps)
        return None if rest else length


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Everything that some files say.

    form      log, prometheus or json
    windows, requests  counts
    lengths   mean emitted tokens a step over stretches of unknown size, where an engine says no more
    tokens_per_second  over everything, where it is said
    notes     what a reader must know
    problems  lines that could not be read, with file and number
    """

    form: str
    windows: tuple[Window, ...] = ()
    requests: tuple[RequestCounts, ...] = ()
    lengths: tuple[float, ...] = ()
    tokens_per_second: float | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.windows or self.requests or self.lengths)


def counts_of(rates: Sequence[float], *, num: int, total: int, half_digit: float) -> tuple[int, ...] | None:
    """Counts whose shares of ``num`` are ``rates`` as printed, and whose sum is ``total``; None where none fit.

    half_digit  half of the last printed digit; 0 for rates that are not rounded
    """
    slack = half_digit * num + 1e-6 * max(1, num)
    counts = [round(rate * num) for rate in rates]
    missing = total - sum(counts)
    step = 1 if missing > 0 else -1
    places = list(range(len(counts))) if step > 0 else list(reversed(range(len(counts))))
    while missing:
        place = next((i for i in places if _may_move(counts, i, step, rates[i] * num, slack, num)), None)
        if place is None:
            return None
        counts[place] += step
        missing -= step
    return tuple(counts) if _falls([num, *counts, 0]) else None


def _may_move(counts: Sequence[int], place: int, step: int, center: float, slack: float, num: int) -> bool:
    moved = [*counts]
    moved[place] += step
    return abs(moved[place] - center) <= slack and _falls([num, *moved, 0])


def _falls(values: Sequence[int]) -> bool:
    return all(a >= b for a, b in zip(values, values[1:], strict=False))
