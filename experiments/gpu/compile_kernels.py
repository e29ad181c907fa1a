"""Compile every Triton kernel of a pass for Hopper, without a GPU: ``python -m experiments.gpu.compile_kernels``.

The operators run on the device ``meta`` at V4-Flash's sizes, in several storages and numbers of tokens; every launch is
compiled by Triton and ``ptxas`` instead of being made. Printed per distinct kernel: registers and stack bytes of a
thread (spilled registers are on the stack), shared memory, warps, and compiler errors. ``--quick`` leaves out
V4-Pro's width, fp32, larger numbers of tokens and a third storage; ``--json`` prints one line of JSON instead.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import TritonError
from triton.runtime.jit import JITFunction

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.stored_weight import WeightFormat
from experiments.gpu.models import FLASH_WIDTH
from experiments.gpu.op_calls import OpSetting, Storage, run_ops, run_others

TARGET = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 227 * 1024
GRID_LIMIT = 65535
# ptxas runs as a process of its own, so two threads keep two processors busy.
COMPILER_THREADS = 2
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")

BF16 = Storage(cache_dtype="bf16", indexer_dtype="mxfp4")
FP8 = Storage(cache_dtype="fp8", indexer_dtype="fp8", linears=WeightFormat.FP8, experts=WeightFormat.FP4)
FP4 = Storage(cache_dtype="fp8", indexer_dtype="plain", linears=WeightFormat.FP4, experts=WeightFormat.FP8)
FP32 = Storage(dtype=torch.float32, cache_dtype="fp32")
FLASH = {**FLASH_WIDTH, "n_routed_experts": 256, "vocab_size": 129280}
PRO = {
    **FLASH,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "index_topk": 1024,
}
# (sizes, storage, tokens, context)
Point = tuple[Mapping[str, object], Storage, int, int]
QUICK: tuple[Point, ...] = ((FLASH, BF16, 1, 65536), (FLASH, FP8, 2, 65536))
ALL: tuple[Point, ...] = (
    *QUICK,
    (FLASH, FP4, 1, 65536),
    (FLASH, FP32, 2, 1024),
    *((FLASH, storage, tokens, 4096) for storage in (BF16, FP8) for tokens in (24, 64, 512)),
    (PRO, BF16, 1, 65536),
    (PRO, FP8, 24, 65536),
)


class StandInDriver:
    """A CUDA driver as far as compiling asks for one."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledKernel:
    """What became of a kernel; ``error`` is empty for one that compiled and fits the GPU.

    stack  bytes of a thread in local memory: spilled registers, and arrays that are indexed by a variable
    """

    name: str
    constants: str
    warps: int = 0
    registers: int = 0
    stack: int = 0
    shared: int = 0
    error: str = ""

    def __str__(self) -> str:
        head = f"{self.name:56} {self.constants[:110]}\n    "
        if self.error:
            return f"{head}ERROR {self.error}"
        return (
            f"{head}{self.registers} registers, {self.stack} bytes of stack, "
            f"{self.shared / 1024:.1f} KB shared, {self.warps} warps"
        )


@dataclass(slots=True)
class Launches:
    """Kernels that were asked for, each once."""

    found: dict[int, tuple[str, str, object]] = field(default_factory=dict)
    refused: list[CompiledKernel] = field(default_factory=list)

    def add(self, run, function: JITFunction, *args, grid, warmup: bool, **options) -> None:
        """Stands in for ``JITFunction.run``: compiles, and launches nothing."""
        name = f"{function.__module__.removeprefix('backends.deepseek_v4.ops.')}.{function.__name__}"
        constants = " ".join(f"{key}={value}" for key, value in options.items() if key in function.arg_names)
        sizes = grid if isinstance(grid, tuple) else ()
        if any(size > GRID_LIMIT for size in sizes[1:]):
            self.refused.append(CompiledKernel(name=name, constants=constants, error=f"grid {sizes} is out of bounds"))
        kernel = run(function, *args, grid=grid, warmup=True, **options)
        self.found.setdefault(id(kernel), (name, constants, kernel))

    def compiled(self) -> list[CompiledKernel]:
        """All kernels, in order of first use."""
        return [*self.refused, *(_describe(*each) for each in self.found.values())]


def _describe(name: str, constants: str, kernel) -> CompiledKernel:
    try:
        done = kernel.result()
    except (TritonError, RuntimeError, subprocess.SubprocessError) as error:
        return CompiledKernel(name=name, constants=constants, error=f"{type(error).__name__}: {error}")
    registers, stack = resource_usage(done.asm["cubin"])
    shared = done.metadata.shared
    return CompiledKernel(
        name=name,
        constants=constants,
        warps=done.metadata.num_warps,
        registers=registers,
        stack=stack,
        shared=shared,
        error="" if shared <= SHARED_LIMIT else f"{shared} bytes of shared memory, a program has {SHARED_LIMIT}",
    )


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = USAGE.search(text)
    assert found is not None, f"cuobjdump has another format: {text}"
    return int(found[1]), int(found[2])


@contextmanager
def compiling() -> Iterator[Launches]:
    """Within, launches of Triton kernels compile them for ``TARGET`` and do nothing else; the driver stays replaced."""
    launches, run = Launches(), JITFunction.run
    triton.runtime.driver.set_active(StandInDriver())

    def compile_only(self, *args, grid, warmup, **options):
        launches.add(run, self, *args, grid=grid, warmup=warmup, **options)

    JITFunction.run = compile_only
    try:
        with ThreadPoolExecutor(COMPILER_THREADS) as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            yield launches
    finally:
        JITFunction.run = run


def compile_kernels(points: Sequence[Point]) -> list[CompiledKernel]:
    """All kernels of passes of these sizes."""
    with compiling() as launches:
        for sizes, storage, num_tokens, context in points:
            setting = OpSetting(
                config=DeepseekV4Config.from_dict(sizes),
                storage=storage,
                num_tokens=num_tokens,
                num_reqs=min(num_tokens, 8),
                context=context,
                device=torch.device("meta"),
            )
            run_ops(setting, Kernels.TRITON)
            run_others(setting)
    return launches.compiled()


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit status is 1 when a kernel does not compile."""
    kernels = compile_kernels(QUICK if "--quick" in arguments else ALL)
    failed = sum(bool(kernel.error) for kernel in kernels)
    if "--json" in arguments:
        print(json.dumps([asdict(kernel) for kernel in kernels]))
    else:
        print(*kernels, f"{len(kernels)} kernels, {failed} failed", sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
