"""The phases of one traced replay: its launches cut where one phase ends and the next begins.

Where that is follows from prefixes of the same round, each traced only to be counted: a round launches the same things
in the same order whether it goes on or not. So all times are those of one replay, and they add up to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.gpu.trace import ReplayTrace, TraceError, check_same

GAPS = "gaps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Consecutive launches of a replay.

    span_us  from its first launch's start to that of the next phase, for the last one to the end of the replay
    busy_us  of that, the time in which something ran
    """

    name: str
    num_launches: int
    span_us: float
    busy_us: float

    @property
    def gap_us(self) -> float:
        """Time of the span in which nothing ran."""
        return self.span_us - self.busy_us


def cut(whole: ReplayTrace, prefixes: Mapping[str, Sequence[str]], last: str) -> list[Phase]:
    """Phases of ``whole``: one per prefix, up to where that prefix ends, and ``last`` behind them.

    prefixes  phase -> names of all launches up to its end, in order

    Raises TraceError when a prefix is not what the whole begins with, or no longer than the one before it.
    """
    names = whole.names
    for phase, launches in prefixes.items():
        check_same(launches, names[: len(launches)], f"a round that ends with its {phase}", "the whole round")
    bounds = [0, *(len(launches) for launches in prefixes.values()), len(names)]
    found = []
    for phase, first, end in zip([*prefixes, last], bounds, bounds[1:], strict=False):
        if end <= first:
            raise TraceError(f"the {phase} of a round of {len(names)} launches has none of its own")
        start_us = whole.events[first].start_us
        end_us = whole.events[end].start_us if end < len(names) else whole.span_us
        found.append(
            Phase(
                name=phase,
                num_launches=end - first,
                span_us=end_us - start_us,
                busy_us=whole.busy_within(start_us, end_us),
            )
        )
    return found


def shares(phases: Sequence[Phase], replay_us: float) -> dict[str, float]:
    """Share of an untraced replay of ``replay_us`` in which each phase runs, and in ``GAPS`` nothing; they add up to 1.

    How long its launches run is taken from the trace; the gaps between them are not, since tracing lengthens them.
    """
    found = {phase.name: phase.busy_us / replay_us for phase in phases}
    return {**found, GAPS: 1 - sum(found.values())}
