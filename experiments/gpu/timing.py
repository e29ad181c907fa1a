"""Times on a GPU: graph replays between events, and the bandwidth of a large copy in the same process.

Without CUDA a graph is its functions and an event the clock of the host: everything around them runs there, for tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

import torch

from specdec.errors import UnsupportedError

COPY_BYTES = 2 << 30
WARM_UP, REPEATS = 5, 30
CPU_COPY_BYTES, CPU_REPEATS = 1 << 20, 2


class Replayable(Protocol):
    """What ``capture`` gives back."""

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Calls:
    """Stands in for a graph where there is no CUDA."""

    functions: tuple[Callable[[], object], ...]

    def replay(self) -> None:
        """Call all functions in order."""
        for function in self.functions:
            function()


def bench_device(*, dry: bool) -> torch.device:
    """The GPU; with ``dry`` a CPU where there is none. Raises UnsupportedError without one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if not dry:
        raise UnsupportedError("this measures an NVIDIA GPU, and none was found (--dry runs small sizes on a CPU)")
    return torch.device("cpu")


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy far beyond the caches.

    The better of the driver's copy and an elementwise kernel: which one is faster depends on the driver.
    """
    has_gpu = torch.cuda.is_available()
    num_bytes = COPY_BYTES if has_gpu else CPU_COPY_BYTES
    source = torch.randn(num_bytes // 4, device="cuda" if has_gpu else "cpu")
    target = torch.empty_like(source)
    ways = (lambda: target.copy_(source), lambda: torch.mul(source, 1.5, out=target))
    return max(2 * num_bytes / (1e-3 * event_ms(way)) for way in ways)


def event_ms(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median milliseconds of a call between two events."""
    return median(_samples_ms([function], repeats)[0])


def difference_ms(shorter: Callable[[], object], longer: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median milliseconds that a call of ``longer`` takes beyond one of ``shorter``.

    They take turns, so that both meet the clocks of the same moment: two medians taken one after the other may not.
    """
    short, long = _samples_ms([shorter, longer], repeats)
    return median(after - before for before, after in zip(short, long, strict=True))


def _samples_ms(functions: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Milliseconds of ``repeats`` calls of each function, in turn, after some that do not count."""
    has_gpu = torch.cuda.is_available()
    once = _one_ms if has_gpu else _one_host_ms
    for _ in range(WARM_UP if has_gpu else 0):
        for function in functions:
            function()
    rounds = [[once(function) for function in functions] for _ in range(repeats if has_gpu else CPU_REPEATS)]
    return [list(samples) for samples in zip(*rounds, strict=True)]


def _one_ms(function: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _one_host_ms(function: Callable[[], object]) -> float:
    started = perf_counter()
    function()
    return 1e3 * (perf_counter() - started)


def capture(functions: Sequence[Callable[[], object]]) -> Replayable:
    """One graph of all calls in order, each run once before on a side stream."""
    if not torch.cuda.is_available():
        return Calls(tuple(functions))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for function in functions:
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for function in functions:
            function()
    return graph


def graph_ms(functions: Sequence[Callable[[], object]], repeats: int = REPEATS) -> float:
    """Median milliseconds of one of ``functions`` when all are replayed as one graph.

    Several functions over data of their own keep the caches from serving the next replay.
    """
    return event_ms(capture(functions).replay, repeats) / len(functions)
