"""Policies for the draft length of one request: from the outcomes of its earlier rounds to the length of the next.

A policy knows lengths only, never a token, a probability or the clock, so its choice is a function of what was
accepted before; see ``drafters.adaptive`` for why that keeps the output exact.
"""

from collections import deque
from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One finished round of a request.

    allowed   draft tokens that the wrapped drafter was allowed
    verified  draft tokens that it proposed and the target verified, 0..allowed
    accepted  of them accepted, 0..verified
    """

    allowed: int
    verified: int
    accepted: int


class LengthPolicy(Protocol):
    """The record of one request and the choice that follows from it."""

    def observe(self, outcome: Outcome) -> None:
        """Enter a finished round."""

    def length(self) -> int:
        """Most tokens to draft in the next round."""


class FixedLength:
    """The same length in every round."""

    def __init__(self, length: int) -> None:
        self._length = length

    def observe(self, outcome: Outcome) -> None:
        """Nothing is kept."""

    def length(self) -> int:
        """See ``LengthPolicy``."""
        return self._length


class MovingAverage:
    """One token more than was accepted on average in the newest rounds that drafted.

    least, most  range of the length
    window       rounds that count
    """

    def __init__(self, *, least: int, most: int, window: int) -> None:
        self._least, self._most = least, most
        self._accepted: deque[int] = deque(maxlen=window)

    def observe(self, outcome: Outcome) -> None:
        """A round without a draft says nothing."""
        if outcome.verified:
            self._accepted.append(outcome.accepted)

    def length(self) -> int:
        """Starts with ``most``, and grows by one while whole drafts are accepted."""
        if not self._accepted:
            return self._most
        return min(max(self._least, 1 + sum(self._accepted) // len(self._accepted)), self._most)


class UpperConfidence:
    """UCB1 over draft lengths; the reward of a round is its tokens per cost, (1 + accepted) / (1 + cost * verified).

    A round of length K shows also what every shorter length would have earned, so all of them are credited. Source:
    Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), UCB1.

    least, most   range of the length
    token_cost    cost of drafting and verifying one token, in plain target passes
    exploration   width of the confidence bound, in tokens per plain target pass
    """

    def __init__(self, *, least: int, most: int, token_cost: float, exploration: float) -> None:
        self._arms = range(least, most + 1)
        self._token_cost, self._exploration = token_cost, exploration
        self._plays = dict.fromkeys(self._arms, 0)
        self._rewards = dict.fromkeys(self._arms, 0.0)
        self._num_rounds = 0

    def observe(self, outcome: Outcome) -> None:
        """Credit the lengths up to the one that was allowed."""
        self._num_rounds += 1
        for arm in self._arms:
            if arm <= outcome.allowed:
                verified, accepted = min(arm, outcome.verified), min(arm, outcome.accepted)
                self._plays[arm] += 1
                self._rewards[arm] += (1 + accepted) / (1 + self._token_cost * verified)

    def length(self) -> int:
        """The length of the highest bound, the longest on ties; starts with the longest, which credits all."""
        return max(self._arms, key=lambda arm: (self._bound(arm), arm))

    def _bound(self, arm: int) -> float:
        plays = self._plays[arm]
        if plays == 0:
            return float("inf")
        return self._rewards[arm] / plays + self._exploration * sqrt(2 * log(self._num_rounds) / plays)
