"""Times on a GPU: graph replays between events, and the bandwidth of a large copy in the same process."""

from collections.abc import Callable, Sequence
from statistics import median

import torch

COPY_BYTES = 2 << 30
WARM_UP, REPEATS = 5, 30


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy far beyond the caches.

    The better of the driver's copy and an elementwise kernel: which one is faster depends on the driver.
    """
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    ways = (lambda: target.copy_(source), lambda: torch.mul(source, 1.5, out=target))
    return max(2 * COPY_BYTES / (1e-3 * event_ms(way)) for way in ways)


def event_ms(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median milliseconds of a call between two events."""
    for _ in range(WARM_UP):
        function()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return median(samples)


def capture(functions: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """One graph of all calls in order, each run once before on a side stream."""
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
