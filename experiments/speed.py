"""Speed-up: tokens per second of two runs of the same prompts, with the spread of their repeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How long one decode of a workload took; microseconds.

    total_us     all rounds
    decode_us    rounds that verified something and took no prompt tokens
    num_tokens   emitted, first tokens of requests included
    num_decoded  of them, those of the rounds in ``decode_us``
    """

    total_us: float
    decode_us: float
    num_tokens: int
    num_decoded: int

    @property
    def rate(self) -> float:
        """Tokens per second, prompts included in the time."""
        return _rate(self.num_tokens, self.total_us)

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


def _rate(num_tokens: int, time_us: float) -> float:
    return num_tokens / time_us * US_PER_S if time_us > 0 else 0.0
