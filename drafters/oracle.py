"""Oracle: replays a known continuation and is right with a set probability at each draft position.

It gives upper bounds of what any drafter can reach and checks the harness; it knows nothing of models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch

from drafters.common import check_num_draft_tokens, proposal_of
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import integer, number
from specdec.errors import ConfigError

COIN_CONTEXT = 8
COIN_BYTES = 8

Continuation = Callable[[Sequence[int]], Sequence[int]]
Reference = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OracleConfig:
    """Settings of the oracle. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round, 1..31
    accuracy          probability of the right token at draft position 1, 2, ...; the last one repeats
    seed              seed of the oracle's own coin
    references        pairs of a prompt and the tokens that follow it; may repeat a prompt
    continuation      used instead of ``references``: all known tokens of a request -> the tokens to come
    """

    num_draft_tokens: int = 3
    accuracy: tuple[float, ...] = (0.8,)
    seed: int = 0
    references: tuple[Reference, ...] = ()
    continuation: Continuation | None = None

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        integer("seed", self.seed, low=0, where="drafter.seed")
        if not self.accuracy:
            raise ConfigError("accuracy must have at least one entry, got none (conf: drafter.accuracy)")
        for value in self.accuracy:
            number("accuracy", value, low=0.0, high=1.0, where="drafter.accuracy")

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(history=True)

    def build(self, setup: DraftSetup) -> "OracleDrafter":
        """Make the live drafter; without a continuation or references it drafts nothing."""
        return OracleDrafter(self, device=setup.device, vocab_size=setup.vocab_size)


class ReferenceTable:
    """Finds the continuation of a history among known pairs of prompt and continuation."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self._sequences: dict[int, list[tuple[int, ...]]] = {}
        for prompt, continuation in references:
            sequence = (*prompt, *continuation)
            self._sequences.setdefault(_first(sequence), []).append(sequence)

    def __call__(self, history: Sequence[int]) -> Sequence[int]:
        """Tokens after ``history`` in the first sequence that begins with it; empty if there is none."""
        known = tuple(history)
        for sequence in self._sequences.get(_first(known), ()):
            if len(sequence) > len(known) and sequence[: len(known)] == known:
                return sequence[len(known) :]
        return ()


def _first(sequence: Sequence[int]) -> int:
    return sequence[0] if sequence else -1


class OracleDrafter:
    """Drafts the known continuation; its coin depends on seed, position, depth and the newest tokens only.

    So a request gets the same drafts whatever shares its batch, and again after a preemption.
    """

    def __init__(self, config: OracleConfig, *, device: torch.device, vocab_size: int) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self._accuracy = config.accuracy
        self._seed = config.seed
        self._continuation = config.continuation or ReferenceTable(config.references)
        self._device = device
        self._vocab_size = vocab_size

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Draft for every request that wants tokens and whose continuation is known."""
        drafts = [
            self._draft(history, min(limit, self.num_draft_tokens)) if wanted else []
            for history, wanted, limit in zip(inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True)
        ]
        return proposal_of(drafts, self._device)

    def _draft(self, history: Sequence[int], limit: int) -> list[int]:
        if limit == 0:
            return []
        right_tokens = self._continuation(history)[:limit]
        return [
            token if self._is_right(history, depth) else (token + 1) % self._vocab_size
            for depth, token in enumerate(right_tokens)
        ]

    def _is_right(self, history: Sequence[int], depth: int) -> bool:
        key = (self._seed, len(history), depth, *history[-COIN_CONTEXT:])
        digest = blake2b(repr(key).encode(), digest_size=COIN_BYTES).digest()
        coin = int.from_bytes(digest) / (1 << 8 * COIN_BYTES)
        return coin < self._accuracy[min(depth, len(self._accuracy) - 1)]

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop: drafts depend on the history alone."""
