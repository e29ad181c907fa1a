"""Prompt lookup: propose what followed the newest tokens the last time they occurred in the request itself.

Source: A. Saxena, "Prompt Lookup Decoding" (2023). Knows nothing of models; it needs only token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drafters.common import check_num_draft_tokens, merged, proposal_of, tree_proposal_of
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import integer, one_of
from specdec.errors import ConfigError

MAX_NGRAM = 16
MAX_BRANCHES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramConfig:
    """Settings of prompt lookup. Raises ConfigError for values out of range.

    num_draft_tokens  most tokens proposed per round, 1..31
    max_ngram         longest suffix that is looked up, 1..16; longer suffixes are tried first
    min_ngram         shortest suffix that is looked up, 1..max_ngram
    match             which occurrence to continue: ``latest`` or ``earliest``
    branches          most occurrences that are continued side by side, as a tree of num_draft_tokens nodes; 1: a chain.
                      The newest (or, for ``earliest``, the oldest) come first
    """

    num_draft_tokens: int = 3
    max_ngram: int = 4
    min_ngram: int = 1
    match: str = "latest"
    branches: int = 1

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        integer("max_ngram", self.max_ngram, low=1, high=MAX_NGRAM, where="drafter.max_ngram")
        integer("min_ngram", self.min_ngram, low=1, high=MAX_NGRAM, where="drafter.min_ngram")
        integer("branches", self.branches, low=1, high=MAX_BRANCHES, where="drafter.branches")
        one_of("match", self.match, ("latest", "earliest"), where="drafter.match")
        if self.min_ngram > self.max_ngram:
            raise ConfigError(
                f"min_ngram must be at most max_ngram {self.max_ngram}, got {self.min_ngram} (conf: drafter.min_ngram)"
            )

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(history=True, trees=self.branches > 1)

    def build(self, setup: DraftSetup) -> "NgramDrafter":
        """Make the live drafter on the device of ``setup``."""
        return NgramDrafter(self, device=setup.device)


class NgramIndex:
    """Occurrences of the n-grams of one growing history; each update costs only the new tokens.

    An n-gram is entered once the token after it is known, so the suffix of the history never finds itself.
    """

    def __init__(self, *, min_ngram: int, max_ngram: int, keep_latest: bool, most: int = 1) -> None:
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._keep_latest = keep_latest
        self._most = most
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._num_indexed = 0

    def update(self, history: Sequence[int]) -> None:
        """Enter every n-gram that has a follower in ``history`` and was not entered before."""
        for end in range(self._num_indexed, len(history) - 1):
            for length in self._lengths:
                if length <= end + 1:
                    self._enter(tuple(history[end + 1 - length : end + 1]), end + 1)
        self._num_indexed = max(self._num_indexed, len(history) - 1)

    def _enter(self, ngram: tuple[int, ...], follower: int) -> None:
        known = self._followers.get(ngram, ())
        if self._keep_latest:
            self._followers[ngram] = (follower, *known[: self._most - 1])
        elif len(known) < self._most:
            self._followers[ngram] = (*known, follower)

    def continuations(self, history: Sequence[int], limit: int) -> list[Sequence[int]]:
        """Up to ``limit`` known tokens after earlier occurrences of the longest suffix that has one."""
        for length in self._lengths:
            if length >= len(history):
                continue
            followers = self._followers.get(tuple(history[len(history) - length :]))
            if followers is not None:
                return [history[follower : follower + limit] for follower in followers]
        return []


class NgramDrafter:
    """Keeps one index per row between rounds; ``forget`` drops it."""

    def __init__(self, config: NgramConfig, *, device: torch.device) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self._config = config
        self._device = device
        self._indices: dict[int, NgramIndex] = {}

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Look up every request that wants tokens; the result is as wide as its longest continuation."""
        found = [
            self._lookup(row, history, limit) if wanted and limit else []
            for row, history, wanted, limit in zip(
                inputs.layout.rows, inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True
            )
        ]
        if self._config.branches == 1:
            return proposal_of([one[0] if one else () for one in found], self._device)
        limits = [min(limit, self.num_draft_tokens) for limit in inputs.max_draft_B]
        return tree_proposal_of([merged(one, limit) for one, limit in zip(found, limits, strict=True)], self._device)

    def _lookup(self, row: int, history: Sequence[int], limit: int) -> list[Sequence[int]]:
        index = self._indices.get(row)
        if index is None:
            index = self._indices[row] = NgramIndex(
                min_ngram=self._config.min_ngram,
                max_ngram=self._config.max_ngram,
                keep_latest=self._config.match == "latest",
                most=self._config.branches,
            )
        index.update(history)
        return index.continuations(history, min(limit, self.num_draft_tokens))

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the indices of these rows."""
        for row in rows:
            self._indices.pop(row, None)
