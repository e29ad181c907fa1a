"""GraphRunner: records functions of constant shape as CUDA graphs and replays them; knows nothing of rounds.

Without CUDA a recording is the function itself, so that everything around it runs, and is tested, on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from specdec.errors import CapacityError, MetadataError

NUM_WARM_UPS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a recording is good for.

    num_reqs            requests, padding included
    tokens_per_request  rows of each
    variant             which operations the verifier runs
    """

    num_reqs: int
    tokens_per_request: int
    variant: str

    def __str__(self) -> str:
        return f"{self.num_reqs}x{self.tokens_per_request} {self.variant}"


@dataclass(frozen=True, slots=True)
class _Recording(Generic[T]):
    """A graph with the tensors that it writes, or the function in its place."""

    function: Callable[[], T]
    graph: torch.cuda.CUDAGraph | None = None
    result: T | None = None


class GraphRunner(Generic[T]):
    """Recordings by key, in one memory pool; recorded on a stream of their own, replayed on the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._recordings: dict[GraphKey, _Recording[T]] = {}
        self._is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None
        self._pool: tuple[int, int] | None = torch.cuda.graph_pool_handle() if self._is_cuda else None

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """What is recorded, in order of recording."""
        return tuple(self._recordings)

    def record(self, key: GraphKey, function: Callable[[], T]) -> None:
        """Run ``function`` to warm it up, then record it under ``key``, in place of what was there.

        It reads and writes tensors that outlive the recording and gives back tensors that every replay overwrites.
        Raises CapacityError when the device has no memory for it.
        """
        try:
            self._recordings[key] = self._recording_of(function)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"out of memory while recording the round {key}: lower engine.graph_batch_sizes or engine.max_batch, "
                f"or set engine.graphs=false ({str(error).splitlines()[0]})"
            ) from None

    def replay(self, key: GraphKey) -> T:
        """Run a recording; what it gives back holds until it runs again, and is there after ``wait``.

        Raises MetadataError for another key.
        """
        recording = self._recordings.get(key)
        if recording is None:
            known = ", ".join(map(str, self._recordings)) or "nothing"
            raise MetadataError(f"round {key} is not recorded; recorded are: {known}")
        if recording.graph is None:
            return recording.function()
        recording.graph.replay()
        assert recording.result is not None, "a recorded function gives back tensors"
        return recording.result

    def wait(self) -> None:
        """Return when all that was replayed is done, its copies to the host included."""
        if self._is_cuda:
            torch.cuda.current_stream(self._device).synchronize()

    def _recording_of(self, function: Callable[[], T]) -> _Recording[T]:
        if not self._is_cuda:
            function()
            return _Recording(function)
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(NUM_WARM_UPS):
                function()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = function()
        return _Recording(function, graph, result)
