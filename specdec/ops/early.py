"""Early launches: programs of a kernel start while the kernel before it still runs, on Hopper and later GPUs.

About a microsecond of every launch, and what a kernel does before it needs results of the one before, such as asking
for weights, then overlap with that one. Source: programmatic dependent launch, CUDA programming guide.

Every kernel launched so calls ``begin`` or ``wait_for_earlier``. Before that it writes nothing and reads nothing that
another kernel of a pass writes. The wait lasts until all earlier kernels have ended, so at most two overlap.
Other kernels of the stream, torch's or a library's, are ordered as ever.
"""

from collections.abc import Callable
from functools import partial

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FIRST_ARCHITECTURE = 90


@triton.jit
def wait_for_earlier(EARLY: tl.constexpr):
    """Wait for the results of all earlier kernels.

    For kernels that one of a library may follow, which may rely on starting after this one has ended.
    """
    if EARLY:
        gdc_wait()


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for the results of all earlier kernels; programs of the next one may start when all of this one have."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


class EarlyKernel:
    """Launches a kernel early where the GPU can; the kernel's last parameter, the constant EARLY, says whether."""

    def __init__(self, kernel: triton.JITFunction) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        launch = self._kernel[grid]
        if can_launch_early():
            return partial(launch, EARLY=True, launch_pdl=True)
        return partial(launch, EARLY=False)


def can_launch_early() -> bool:
    """Whether the current GPU starts kernels early."""
    if triton.knobs.runtime.interpret:
        return False
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= FIRST_ARCHITECTURE
