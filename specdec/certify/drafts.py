"""Drafts of table models: what was drawn, what is reported, how long it is, and which randomness it shares."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.api import SiblingDraws
from specdec.certify.chance import Chance, Number
from specdec.certify.tables import Law, Table

Past = tuple[tuple[int, int], ...]
PAST_ROUNDS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftedChain:
    """One draft, a chain unless it has parents.

    tokens   drafted tokens
    laws     the law that the drafter reports for each, or None for point masses
    windows  part of (0, 1) in which the uniform lay that drew each token (ids in order, inverse CDF)
    after    (accepted tokens) -> the drafter's state before the next round
    parents  index of each token's parent in a tree; None for a chain
    draws    how siblings were drawn from their laws
    """

    tokens: tuple[int, ...]
    laws: tuple[Law, ...] | None
    windows: tuple[tuple[Number, Number], ...]
    after: Callable[[int], Hashable]
    parents: tuple[int, ...] | None = None
    draws: SiblingDraws | None = None


class DraftSource(Protocol):
    """A drafter as the certificate sees it: its random choices are made by ``Chance``.

    start  state before the first round; states are hashable and compare by value
    """

    start: Hashable

    def draft(self, chance: Chance, known: tuple[int, ...], limit: int, state: Hashable) -> DraftedChain:
        """Draft at most ``limit`` tokens after the ``known`` ones."""


def full_length(past: Past, most: int) -> int:
    """The policy that always drafts as many tokens as it may."""
    return most


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDrafts:
    """Drafts of a table model.

    drawn          the laws that tokens are drawn from
    reported       the laws that are reported, or None for point masses
    most           most tokens per round
    policy         (drafted and accepted tokens of the newest rounds, most) -> tokens of this round
    confidence     drafting stops before a token whose reported law has no entry of at least this probability
    keeps          (drafted tokens) -> how many of them are verified; one that does not keep all has peeked
    repeats_noise  whether a position drafted twice gives the same token twice, as noise keyed by position alone does
                   (a constant table is required)
    """

    drawn: Table
    reported: Table | None
    most: int
    policy: Callable[[Past, int], int] = full_length
    confidence: Number = 0
    keeps: Callable[[Sequence[int]], int] = len
    repeats_noise: bool = False

    def __post_init__(self) -> None:
        assert not self.repeats_noise or len(self.drawn.rows) == 1, "repeated noise needs a constant table"

    @property
    def start(self) -> Hashable:
        """See ``DraftSource``."""
        return ((), ())

    def draft(self, chance: Chance, known: tuple[int, ...], limit: int, state: Hashable) -> DraftedChain:
        """See ``DraftSource``."""
        past, left_over = state
        tokens, laws, windows = [], [], []
        for step in range(min(limit, self.policy(past, self.most))):
            context = (*known, *tokens)
            law = self.drawn.law(context)
            told = law if self.reported is None else self.reported.law(context)
            if max(told) < self.confidence:
                break
            token = left_over[step] if step < len(left_over) else chance.choose(law)
            below = sum(law[:token])
            tokens.append(token)
            laws.append(told)
            windows.append((below, below + law[token]))
        kept = self.keeps(tokens)

        def after(num_accepted: int) -> Hashable:
            newest = (*past, (kept, num_accepted))[-PAST_ROUNDS:] if self.policy is not full_length else ()
            return newest, tuple(tokens[num_accepted + 1 :]) if self.repeats_noise else ()

        return DraftedChain(
            tokens=tuple(tokens[:kept]),
            laws=None if self.reported is None else tuple(laws[:kept]),
            windows=tuple(windows[:kept]),
            after=after,
        )
