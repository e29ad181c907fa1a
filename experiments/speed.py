"""Speed-up: tokens per second, of wall or CPU time, of two runs of the same prompts, and the spread of repeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

US_PER_S = 1e6
BUSY_FACTOR = 1.25
"""Wall time beyond this many times the CPU time was not spent on the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How long one decode of a workload took; microseconds.

    total_us     all rounds
    decode_us    rounds that verified something and took no prompt tokens
    num_tokens   emitted, first tokens of requests included
    num_decoded  of them, those of the rounds in ``decode_us``
    cpu_us       CPU time of the process, all threads, within ``total_us``; 0 where it was not recorded
    """

    total_us: float
    decode_us: float
    num_tokens: int
    num_decoded: int
    cpu_us: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second, prompts included in the time."""
        return _rate(self.num_tokens, self.total_us)

    @property
    def cpu_rate(self) -> float:
        """Tokens per CPU second, prompts included in the time."""
        return _rate(self.num_tokens, self.cpu_us)

    @property
    def decode_rate(self) -> float:
        """Tokens per second of the rounds that only decode."""
        return _rate(self.num_decoded, self.decode_us)


def measured(rates: Sequence[float]) -> dict[str, float | int | None]:
    """Mean of the repeats, their range, and their number; no range from a single repeat."""
    known = [rate for rate in rates if rate > 0]
    if not known:
        return {"value": None, "low": None, "high": None, "n": 0}
    several = len(known) > 1
    return {
        "value": fmean(known),
        "low": min(known) if several else None,
        "high": max(known) if several else None,
        "n": len(known),
    }


def ratio(
    ours: Sequence[Timing], plain: Sequence[Timing], rate: Callable[[Timing], float]
) -> dict[str, float | int | None]:
    """Ratio of mean rates; its range is that of every repeat of one against every repeat of the other."""
    top, bottom = ([value for value in map(rate, timings) if value > 0] for timings in (ours, plain))
    if not top or not bottom:
        return {"value": None, "low": None, "high": None, "n": 0}
    several = min(len(top), len(bottom)) > 1
    return {
        "value": fmean(top) / fmean(bottom),
        "low": min(top) / max(bottom) if several else None,
        "high": max(top) / min(bottom) if several else None,
        "n": min(len(top), len(bottom)),
    }


def waited(timings: Sequence[Timing]) -> tuple[float, float] | None:
    """CPU and wall seconds of all repeats where the process had to wait for a core; None where it had not.

    With several threads their CPU time adds up, so that it takes more waiting before this says so.
    """
    cpu_s = sum(timing.cpu_us for timing in timings) / US_PER_S
    wall_s = sum(timing.total_us for timing in timings) / US_PER_S
    return (cpu_s, wall_s) if 0 < BUSY_FACTOR * cpu_s < wall_s else None


def _rate(num_tokens: int, time_us: float) -> float:
    return num_tokens / time_us * US_PER_S if time_us > 0 else 0.0
