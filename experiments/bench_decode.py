"""A decode step of a V4-Flash-width model on a GPU: ``python -m experiments.bench_decode [--save] [--quick]``.

Four layers of V4-Flash (window, CSA, HCA, CSA; 64 experts; 32768 ids) with random weights. Every step is one CUDA
graph. Printed per storage, batch and context: milliseconds, the time over the floor (the bytes that the step must
read over the bandwidth of a copy in the same run) and over transformers' eager step of the same weights in the same
run. ``--save`` writes ``experiments/results/h200_decode.json``.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.deepseek_v4.fused.weights import WeightFormats
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.stored_weight import WeightFormat
from backends.vendor.flash_mla import is_available
from experiments.gpu.models import FLASH_WIDTH, build
from experiments.gpu.peer import peer_ms
from experiments.gpu.timing import copy_bandwidth, graph_ms
from experiments.gpu.worlds import WorldShape, floor_bytes, make_world, total
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result

Point = tuple[int, int]
"""Batch and context."""
ALL: tuple[Point, ...] = ((1, 1024), (8, 1024), (64, 1024), (1, 65536), (8, 65536), (64, 65536))
SOME: tuple[Point, ...] = ((1, 1024), (8, 1024), (64, 1024), (1, 65536), (64, 65536))
QUICK: tuple[Point, ...] = ((1, 1024), (64, 1024))
PEER_POINTS = ((1, 1024), (8, 1024))
FORMATS = {
    "bf16": WeightFormats(),
    "fp8 + fp4 experts": WeightFormats(linears=WeightFormat.FP8, experts=WeightFormat.FP4),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Types that weights (a name of ``FORMATS``), rows and indexer keys are stored in; at which points it is timed."""

    weights: str
    cache_dtype: str
    indexer_dtype: str
    kernels: Kernels
    points: tuple[Point, ...]


def storages() -> list[Storage]:
    """What is timed here: the default, then fp8 rows with every attention kernel and every type of weights."""
    found = [Storage(weights="bf16", cache_dtype="bf16", indexer_dtype="plain", kernels=Kernels.TRITON, points=ALL)]
    fp8_kernels = [Kernels.TRITON]
    if is_available(torch.device("cuda")):
        fp8_kernels.append(Kernels.FLASH_MLA)
    for kernels in fp8_kernels:
        for weights in FORMATS:
            found.append(Storage(weights=weights, cache_dtype="fp8", indexer_dtype="fp8", kernels=kernels, points=SOME))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__, options=("--save", "--quick"))


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    is_quick = "--quick" in arguments
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s")
    model, _ = build(FLASH_WIDTH, device, dtype)
    peers = {point: peer_ms(FLASH_WIDTH, model, batch=point[0], context=point[1]) for point in PEER_POINTS}
    torch.cuda.empty_cache()
    figures = []
    for storage in storages():
        for batch, context in QUICK if is_quick else storage.points:
            shape = WorldShape(
                batch=batch,
                context=context,
                cache_dtype=storage.cache_dtype,
                indexer_dtype=storage.indexer_dtype,
                num_draft_tokens=1,
                kernels=storage.kernels,
                formats=FORMATS[storage.weights],
            )
            figures.append(measure(model, shape, storage.weights, bandwidth, peers.get((batch, context))))
            torch.cuda.empty_cache()
    if "--save" in arguments:
        save_gpu_result("h200_decode.json", "python -m experiments.bench_decode --save", {"steps": figures})


def measure(
    model: DeepseekV4Model, shape: WorldShape, weights: str, bandwidth: float, peer: float | None
) -> dict[str, object]:
    """One point: printed, and returned for the result file.

    bandwidth  of a copy, bytes a second
    peer       milliseconds of transformers' eager step, where it was timed
    """
    world = make_world(model, None, shape)
    packed = world.packed(1)
    step_ms = graph_ms([lambda: world.target.forward_packed(packed)])
    floor_ms = 1e3 * total(floor_bytes(world, 1)) / bandwidth
    ours = f"{step_ms:7.3f} ms  {step_ms / floor_ms:5.2f} x floor ({floor_ms:.3f} ms)"
    theirs = "" if peer is None else f"  transformers {peer:.1f} ms, {peer / step_ms:.1f} x ours"
    name = f"{weights} weights, {shape.cache_dtype} rows, {shape.kernels.value}"
    print(f"{name:44} batch {shape.batch:3} context {shape.context:6}  {ours}{theirs}", flush=True)
    return {
        "weights": weights,
        "cache_dtype": shape.cache_dtype,
        "kernels": shape.kernels.value,
        "batch": shape.batch,
        "context": shape.context,
        "step_ms": step_ms,
        "floor_ms": floor_ms,
        "over_floor": step_ms / floor_ms,
        "transformers_ms": peer,
    }


if __name__ == "__main__":
    sys.exit(main())
