"""Acceptance by depth: predicted from a target's own texts without the engine, and measured by it; pure.

A lossless rule leaves the text's law alone, so on a text that the target wrote by itself a draft token is accepted with
a chance that is known for each place: min(1, q / p) of the text's token under the ratio test, 1 or 0 when greedy. The
steps of the engine are then a renewal process along the text, whose expectation is summed here exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdec.metrics import Steps, survival, tokens_per_step
from specdec.step_row import StepRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Expected sums over the steps of one or more texts, float64.

    accepted  [K] steps that accept depth i
    proposed  [K] steps that propose depth i and whose text goes on that far
    steps     all of them
    tokens    that they emit
    """

    accepted: np.ndarray
    proposed: np.ndarray
    steps: float
    tokens: float

    def __add__(self, other: "Expected") -> "Expected":
        return Expected(
            accepted=self.accepted + other.accepted,
            proposed=self.proposed + other.proposed,
            steps=self.steps + other.steps,
            tokens=self.tokens + other.tokens,
        )

    @property
    def survival(self) -> list[float]:
        """Share of steps that accept depth i among those that propose it."""
        return [float(a / p) if p else float("nan") for a, p in zip(self.accepted, self.proposed, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else float("nan")


def expected_steps(kept: np.ndarray, *, num_prompt: int, length: int, max_tokens: int) -> Expected:
    """What the engine's steps over one text come to on average.

    kept        [K, slots] chance that the draft of depth i at slot s is accepted; it drafts token s + 2
    num_prompt  tokens of the prompt; the first token after it costs no step
    length      tokens of the text
    max_tokens  length at which the request would have been cut
    """
    depth = len(kept)
    accepted, proposed = np.zeros(depth), np.zeros(depth)
    visits = np.zeros(length + depth + 2)
    visits[num_prompt + 1] = 1.0
    for known in range(num_prompt + 1, length):
        visited = reach = visits[known]
        limit = min(depth, max_tokens - known - 1)
        for i in range(limit):
            token = known + i
            if token >= length:
                reach = 0.0
                break
            chance = kept[i, token - 2]
            proposed[i] += visited
            accepted[i] += reach * chance
            visits[token + 1] += reach * (1 - chance)
            reach *= chance
        visits[known + max(limit, 0) + 1] += reach
    return Expected(
        accepted=accepted,
        proposed=proposed,
        steps=float(visits[num_prompt + 1 : length].sum()),
        tokens=float(length - num_prompt - 1),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the engine's steps came to.

    survival         [K] see ``specdec.metrics.survival``
    observed         [K] steps behind each
    tokens_per_step  see ``specdec.metrics.tokens_per_step``
    """

    survival: tuple[float, ...]
    observed: tuple[int, ...]
    tokens_per_step: float


def measured_steps(rows: Sequence[StepRow], depth: int) -> Measured:
    """From the engine's rows."""
    steps = Steps.of(rows)
    terms = [survival(steps, position) for position in range(1, depth + 1)]
    return Measured(
        survival=tuple(term.value for term in terms),
        observed=tuple(term.num for term in terms),
        tokens_per_step=tokens_per_step(steps).value,
    )
