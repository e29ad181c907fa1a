"""RoundTimes: where the time of the verify rounds of a run went; knows nothing of prompts or acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec.step_row import StepRow

US_PER_MS = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Sums over the distinct rounds of a run, in microseconds.

    Every row of a round carries the times of the whole round, so a round counts once whatever its batch.
    """

    draft_us: float
    verify_us: float
    other_us: float
    num_rounds: int

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> "RoundTimes":
        """Times of the rows of one run."""
        rounds = {row.round: row for row in rows}.values()
        return cls(
            draft_us=sum(row.draft_us for row in rounds),
            verify_us=sum(row.verify_us for row in rounds),
            other_us=sum(row.other_us for row in rounds),
            num_rounds=len(rounds),
        )

    @property
    def ms_per_round(self) -> Mapping[str, float | None]:
        """Mean milliseconds of a round by phase (draft, verify, other); None for each without a round."""
        sums = {"draft": self.draft_us, "verify": self.verify_us, "other": self.other_us}
        return {phase: us / self.num_rounds / US_PER_MS if self.num_rounds else None for phase, us in sums.items()}
