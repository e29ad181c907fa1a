"""KernelCase: one operator of a pass with the bytes that it must move, over several copies of its data.

Weights and caches are cold in a step, since those of other layers were read in between: the calls of a case go through
copies of them. Activations were written by the kernel before and lie in the L2 cache, in a step as here.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from backends.deepseek_v4.ops.sparse_attention import KeyList

L2_BYTES = 50 << 20
NUM_COMPILERS = 12
MOST_COPIES = 256
# Of a graph: calls of small kernels, and bytes of large ones.
MEASURED_CALLS, MEASURED_BYTES = 64, 4e9


def copies_for(nbytes: float, *, least: int = 2, most: int = MOST_COPIES) -> int:
    """Copies of data that are more than the L2 cache holds twice, as far as ``most`` allows."""
    return min(most, max(least, -(-int(2.5 * L2_BYTES) // max(1, int(nbytes)))))


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    """Calls that differ in nothing but the copies of the data that they read.

    nbytes  that each call must read and write
    """

    name: str
    nbytes: float
    calls: tuple[Callable[[], object], ...]

    @property
    def is_cold(self) -> bool:
        """Whether the L2 cache cannot hold what the calls read, so that the memory is measured."""
        return self.nbytes * len(self.calls) > 2 * L2_BYTES

    @property
    def num_rounds(self) -> int:
        """How often a graph goes through the calls, so that its own launch counts for little."""
        if not torch.cuda.is_available():
            return 1
        most = MEASURED_BYTES / max(1.0, self.nbytes)
        return max(1, int(min(MEASURED_CALLS, most)) // len(self.calls))


def warm_up(cases: Sequence[KernelCase]) -> None:
    """Run every case once, on a GPU side by side: the first call compiles its kernels."""
    if not torch.cuda.is_available():
        for case in cases:
            case.calls[0]()
        return
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(lambda case: case.calls[0](), cases))
    torch.cuda.synchronize()


def dense(*tensors: torch.Tensor | None) -> int:
    """Bytes of whole tensors."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def rows_bytes(keys: KeyList) -> int:
    """Bytes of the rows that a list names."""
    return int(keys.slots.lens_T.sum()) * keys.rows.row_bytes
