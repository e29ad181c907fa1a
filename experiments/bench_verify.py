"""What verification costs by its width on a GPU: ``python -m experiments.bench_verify [--save]``.

A pass of N tokens per request over a pass of one, for the V4-Flash-width model of ``bench_decode`` at batches from 1
to 64, with bf16 rows and Triton, and with fp8 rows and FlashMLA where it is installed: with the acceptance of a drafter
this curve decides the best draft length. Every pass is one CUDA graph.
``--save`` writes ``experiments/results/h200_verify.json``.
"""

import sys
from collections.abc import Sequence
from functools import partial

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model
from backends.vendor.flash_mla import is_available
from experiments.gpu.models import FLASH_WIDTH, build
from experiments.gpu.timing import copy_bandwidth, graph_ms
from experiments.gpu.worlds import WorldShape, floor_bytes, make_world, total
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result

BATCHES, WIDTHS, CONTEXT = (1, 4, 16, 64), (1, 2, 3, 4, 5, 8), 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__)


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    bandwidth = copy_bandwidth()
    model, _ = build(FLASH_WIDTH, torch.device("cuda"), torch.bfloat16)
    figures = [measure(model, shape, bandwidth) for shape in shapes()]
    if "--save" in arguments:
        save_gpu_result("h200_verify.json", "python -m experiments.bench_verify --save", {"curves": figures})


def shapes() -> list[WorldShape]:
    """Every batch in every storage that is timed here."""
    storages = [("bf16", "plain", Kernels.TRITON)]
    if is_available(torch.device("cuda")):
        storages.append(("fp8", "fp8", Kernels.FLASH_MLA))
    return [
        WorldShape(
            batch=batch,
            context=CONTEXT,
            cache_dtype=cache_dtype,
            indexer_dtype=indexer_dtype,
            num_draft_tokens=max(WIDTHS) - 1,
            kernels=kernels,
        )
        for cache_dtype, indexer_dtype, kernels in storages
        for batch in BATCHES
    ]


def measure(model: DeepseekV4Model, shape: WorldShape, bandwidth: float) -> dict[str, object]:
    """The curve of one shape: printed, and returned for the result file; ``bandwidth`` of a copy in bytes a second."""
    world = make_world(model, None, shape)
    times, floors = {}, {}
    for width in WIDTHS:
        packed = world.packed(width)
        times[width] = graph_ms([partial(world.target.forward_packed, packed)])
        floors[width] = 1e3 * total(floor_bytes(world, width)) / bandwidth
    curve = "  ".join(f"N={n}: {times[n]:.3f} ms, {times[n] / times[1]:.2f} x" for n in WIDTHS)
    print(f"{shape.cache_dtype} rows, {shape.kernels.value}, batch {shape.batch:3}  {curve}", flush=True)
    del world
    torch.cuda.empty_cache()
    return {
        "cache_dtype": shape.cache_dtype,
        "kernels": shape.kernels.value,
        "batch": shape.batch,
        "context": shape.context,
        "step_ms": times,
        "floor_ms": floors,
    }


if __name__ == "__main__":
    sys.exit(main())
