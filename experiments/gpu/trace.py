"""What a graph replay does on the GPU: its kernels with their times, from CUPTI through torch's profiler.

Without CUDA operators of the host take their place, so that everything around them runs there, for tests.
"""

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.gpu.timing import Replayable

REPLAYS = 5
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cpu_op",)
TOOL = "CUPTI through torch.profiler"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayTrace:
    """The median replay of a few.

    span_us     from the first kernel's start to the last one's end
    busy_us     time in which some kernel ran
    kernels_us  name -> microseconds in one replay, all launches added
    launches    name -> launches in one replay
    """

    span_us: float
    busy_us: float
    kernels_us: dict[str, float]
    launches: dict[str, int]

    @property
    def num_launches(self) -> int:
        """Kernels, copies and fills of one replay."""
        return sum(self.launches.values())

    @property
    def idle_share(self) -> float:
        """Share of the span in which nothing ran."""
        return 1 - self.busy_us / self.span_us


def trace_replay(graph: Replayable) -> ReplayTrace:
    """Trace some replays, each alone on the GPU, and take the one of median span."""
    has_gpu = torch.cuda.is_available()
    activity = torch.profiler.ProfilerActivity.CUDA if has_gpu else torch.profiler.ProfilerActivity.CPU
    for _ in range(3 if has_gpu else 1):
        graph.replay()
    _finish()
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(REPLAYS):
            graph.replay()
            _finish()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    wanted = DEVICE_CATEGORIES if has_gpu else HOST_CATEGORIES
    found = sorted((event["ts"], event["dur"], event["name"]) for event in events if event.get("cat") in wanted)
    per_replay = len(found) // REPLAYS
    replays = [_summary(found[i * per_replay : (i + 1) * per_replay]) for i in range(REPLAYS)]
    return sorted(replays, key=lambda replay: replay.span_us)[REPLAYS // 2]


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _summary(events: list[tuple[float, float, str]]) -> ReplayTrace:
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    busy, reached = 0.0, events[0][0]
    for start, duration, name in events:
        times[name] += duration
        launches[name] += 1
        busy += max(0.0, start + duration - max(start, reached))
        reached = max(reached, start + duration)
    return ReplayTrace(span_us=reached - events[0][0], busy_us=busy, kernels_us=dict(times), launches=dict(launches))
