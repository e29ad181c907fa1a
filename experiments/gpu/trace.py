"""What a graph replay does on the GPU: its kernels in order with their times, from CUPTI through torch's profiler.

Without CUDA operators of the host take their place, so that everything around them runs there, for tests.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.gpu.timing import Replayable
from specdec.errors import SpecDecError

REPLAYS, CPU_REPLAYS = 5, 2
# The profiler may lose events, so a trace that cannot be right is made again.
TRIES = 3
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cpu_op",)
TOOL = "CUPTI through torch.profiler"


class TraceError(SpecDecError, RuntimeError):
    """A trace contradicts itself, or another one that it is read with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A kernel, copy or fill; microseconds from the first launch of its replay."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayTrace:
    """One replay: its launches in the order in which they began, at least one."""

    events: tuple[Launch, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every launch."""
        return tuple(each.name for each in self.events)

    @property
    def num_launches(self) -> int:
        """Kernels, copies and fills."""
        return len(self.events)

    @property
    def launches(self) -> dict[str, int]:
        """Name -> launches."""
        return dict(Counter(self.names))

    @property
    def kernels_us(self) -> dict[str, float]:
        """Name -> microseconds of all its launches."""
        times: Counter[str] = Counter()
        for each in self.events:
            times[each.name] += each.end_us - each.start_us
        return dict(times)

    @property
    def span_us(self) -> float:
        """From the first launch's start to the end of the last one to end."""
        return max(each.end_us for each in self.events)

    @property
    def busy_us(self) -> float:
        """Time in which something ran."""
        return self.busy_within(0.0, self.span_us)

    @property
    def idle_share(self) -> float:
        """Share of the span in which nothing ran."""
        return 1 - self.busy_us / self.span_us

    def busy_within(self, start_us: float, end_us: float) -> float:
        """Time between two moments in which something ran; what overlaps counts once."""
        busy, reached = 0.0, start_us
        for each in self.events:
            until = min(each.end_us, end_us)
            busy += max(0.0, until - max(each.start_us, reached))
            reached = max(reached, until)
        return busy


def trace_replay(graph: Replayable, *, replays: int | None = None) -> ReplayTrace:
    """Trace some replays, each alone on the GPU, and take the one of median span.

    Raises TraceError when they do not all have the same launches, or none.
    """
    if replays is None:
        replays = REPLAYS if torch.cuda.is_available() else CPU_REPLAYS
    for attempt in range(TRIES):
        try:
            traces = split(_profiled(graph, replays), replays)
        except TraceError:
            if attempt == TRIES - 1:
                raise
            continue
        return sorted(traces, key=lambda trace: trace.span_us)[replays // 2]
    raise AssertionError("the last attempt returns or raises")


def split(found: Iterable[tuple[float, float, str]], replays: int) -> list[ReplayTrace]:
    """(start, duration, name) of all launches -> the replays; raises TraceError when they differ in their launches."""
    # An operator of the host begins together with the first one that it is made of: the longer one is the outer one.
    ordered = sorted(found, key=lambda event: (event[0], -event[1], event[2]))
    if not ordered or len(ordered) % replays:
        raise TraceError(f"the profiler saw {len(ordered)} launches in {replays} replays of one graph")
    count = len(ordered) // replays
    traces = [_trace(ordered[i * count : (i + 1) * count]) for i in range(replays)]
    for trace in traces[1:]:
        check_same(traces[0].names, trace.names, "the first replay", "another replay of the graph")
    return traces


def check_same(ours: Sequence[str], theirs: Sequence[str], our_name: str, their_name: str) -> None:
    """Raise TraceError, which says where, unless two lists of launches are the same."""
    if tuple(ours) == tuple(theirs):
        return
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((i for i, (own, other) in pairs if own != other), min(len(ours), len(theirs)))
    own, other = (names[place] if place < len(names) else "nothing" for names in (ours, theirs))
    raise TraceError(
        f"launch {place} is {own!r} in {our_name} ({len(ours)} launches) and {other!r} in {their_name} ({len(theirs)})"
    )


def _profiled(graph: Replayable, replays: int) -> list[tuple[float, float, str]]:
    """(start, duration, name) in microseconds of all launches of some replays, after others that warm up."""
    has_gpu = torch.cuda.is_available()
    activity = torch.profiler.ProfilerActivity.CUDA if has_gpu else torch.profiler.ProfilerActivity.CPU
    for _ in range(3 if has_gpu else 1):
        graph.replay()
    _finish()
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(replays):
            graph.replay()
            _finish()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    wanted = DEVICE_CATEGORIES if has_gpu else HOST_CATEGORIES
    return [(event["ts"], event["dur"], event["name"]) for event in events if event.get("cat") in wanted]


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _trace(ordered: Sequence[tuple[float, float, str]]) -> ReplayTrace:
    origin = ordered[0][0]
    return ReplayTrace(
        events=tuple(
            Launch(name=name, start_us=start - origin, end_us=start - origin + duration)
            for start, duration, name in ordered
        )
    )
