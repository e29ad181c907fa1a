"""RoundTimes: where the time of the verify rounds of a run went; knows nothing of prompts or acceptance."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.metrics import StepRow

US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Sums over the distinct rounds of a run, in microseconds, and the tokens that its steps emitted.

    Every row of a round carries the times of the whole round, so a round counts once whatever its batch.
    """

    draft_us: float
    verify_us: float
    other_us: float
    num_rounds: int
    num_tokens: int

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> "RoundTimes":
        """Times of the rows of one run."""
        rounds = {row.round: row for row in rows}.values()
        return cls(
            draft_us=sum(row.draft_us for row in rounds),
            verify_us=sum(row.verify_us for row in rounds),
            other_us=sum(row.other_us for row in rounds),
            num_rounds=len(rounds),
            num_tokens=sum(row.emitted for row in rows),
        )

    @property
    def total_us(self) -> float:
        """Time of all rounds."""
        return self.draft_us + self.verify_us + self.other_us

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over time, prompts left out; NaN without time."""
        return self.num_tokens / self.total_us * US_PER_S if self.total_us > 0 else float("nan")
