"""Each kernel of a decode step against the bandwidth of a copy: ``python -m experiments.bench_kernels [SECTION ...]``.

Sections, all by default:

    step       every operator of the V4-Flash-width model at 1 and 64 tokens, 1k context, bf16 weights and rows (other
               weight formats: ``bench_linear``)
    attention  FlashMLA's bare call, our wrapper with and without the inverse rope that follows it, and Triton. The
               inverse rope belongs to the model, not to the wrapper: FlashMLA leaves it to its caller
    selection  indexer scores and selection of rows at 1k, 64k and 1M context
    choose     the choice of the tokens of a verify pass

Printed per kernel: microseconds in a CUDA graph that goes through copies of the data, bytes that must move over that
time, and the share of a large copy's bandwidth in the same run. A star marks data that the L2 cache holds, as
activations are in a step: there the bandwidth of the memory is no bound, and the time is what counts.

    --dry   small sizes on whatever there is, to try the command; its figures mean nothing
    --save  write ``experiments/results/h200_kernels.json`` (with some sections only: ``h200_kernels_SECTION.json``)
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.kernels import Kernels
from backends.vendor.flash_mla import FlashMla, is_available, load
from experiments.gpu.attention_cases import AttentionShape, measure_attention
from experiments.gpu.kernel_case import KernelCase, warm_up
from experiments.gpu.models import FLASH_WIDTH
from experiments.gpu.op_calls import OpSetting, Storage
from experiments.gpu.sanitize import SMALL
from experiments.gpu.selection_cases import Selection, choose_case, score_case, select_case
from experiments.gpu.step_cases import StepCases
from experiments.gpu.timing import bench_device, copy_bandwidth, graph_ms
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result

WRAPPER_GOAL = 0.05
# Nothing is begun after so many seconds; what is missing is said. All sections take 45 s on an H200.
LAST_START_S = 240.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What is measured; ``cached`` rows lie in each buffer of the attention section."""

    raw: Mapping[str, object]
    tokens: tuple[int, ...]
    context: int
    copies: int
    cached: int
    window: int
    extras: tuple[int, ...]
    contexts: tuple[int, ...]
    chosen: tuple[tuple[int, int, int], ...]


REAL = Sizes(
    raw=FLASH_WIDTH,
    tokens=(1, 64),
    context=1024,
    copies=4,
    cached=1 << 18,
    window=128,
    extras=(0, 8, 512),
    contexts=(1024, 65536, 1 << 20),
    chosen=((1, 1, 129280), (1, 4, 129280), (16, 4, 129280)),
)
DRY = Sizes(
    raw={**SMALL, "num_hidden_layers": 3},
    tokens=(1, 3),
    context=640,
    copies=2,
    cached=256,
    window=16,
    extras=(0, 64),
    contexts=(640, 1280),
    chosen=((2, 2, 300),),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Where and with what the sections measure; ``bandwidth`` in bytes per second."""

    device: torch.device
    sizes: Sizes
    kernels: Kernels
    flash: FlashMla | None
    bandwidth: float
    started_s: float

    @property
    def config(self) -> DeepseekV4Config:
        return DeepseekV4Config.from_dict(self.sizes.raw)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def is_late(self) -> bool:
        """Whether nothing more is begun."""
        return perf_counter() - self.started_s > LAST_START_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(
        arguments, _measure_all, about=__doc__, options=("--dry", "--save"), words=SECTIONS, without_gpu=("--dry",)
    )


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    started, dry = perf_counter(), "--dry" in arguments
    wanted = chosen_sections(arguments)
    device = bench_device(dry=dry)
    flash = load() if is_available(device) and not dry else None
    bench = Bench(
        device=device,
        sizes=DRY if dry else REAL,
        kernels=Kernels.TRITON if device.type == "cuda" else Kernels.REFERENCE,
        flash=flash,
        bandwidth=copy_bandwidth(),
        started_s=started,
    )
    print(f"a copy moves {bench.bandwidth / 1e12:.2f} TB/s; FlashMLA is {'here' if flash else 'not here'}")
    with torch.no_grad():
        found = {name: SECTIONS[name](bench) for name in wanted}
    missing = [f"{name}: {each}" for name, (_, left) in found.items() for each in left]
    print(f"{perf_counter() - started:.0f} s{f'; not measured in time: {missing}' if missing else ''}")
    if "--save" in arguments and not dry:
        figures = {name: lines for name, (lines, _) in found.items()}
        save_gpu_result(*result_of(wanted), {"copy_bytes_per_s": bench.bandwidth, **figures, "not_measured": missing})


def result_of(wanted: Sequence[str]) -> tuple[str, str]:
    """Name of the file and command of some sections; all of them have one of their own."""
    some = [] if set(wanted) == set(SECTIONS) else list(wanted)
    return "_".join(["h200_kernels", *some]) + ".json", " ".join(
        ["python -m experiments.bench_kernels", *some, "--save"]
    )


Lines = tuple[list[dict[str, object]], list[str]]


def chosen_sections(arguments: Sequence[str]) -> list[str]:
    """The named sections, or all."""
    return [each for each in arguments if not each.startswith("-")] or list(SECTIONS)


def step(bench: Bench) -> Lines:
    """Every operator of a step."""
    lines, missing = [], []
    storage = Storage(dtype=bench.dtype, cache_dtype="bf16" if bench.dtype is torch.bfloat16 else "fp32")
    for tokens in bench.sizes.tokens:
        if bench.is_late:
            missing.append(f"{tokens} tokens")
            continue
        setting = OpSetting(
            config=bench.config,
            storage=storage,
            num_tokens=tokens,
            num_reqs=tokens,
            context=bench.sizes.context,
            device=bench.device,
        )
        cases = StepCases(setting, bench.kernels, num_copies=bench.sizes.copies).cases()
        warm_up(cases)
        lines += [timed(case, bench, tokens=tokens) for case in cases]
        del cases
        torch.cuda.empty_cache()
    return lines, missing


def timed(case: KernelCase, bench: Bench, **where: int) -> dict[str, object]:
    """Time a case; printed, and returned for the result file."""
    us = 1e3 * graph_ms(case.calls * case.num_rounds)
    speed = case.nbytes / us * 1e6
    place = " ".join(f"{name} {value}" for name, value in where.items())
    print(
        f"{place:24} {case.name:44} {us:9.2f} us {case.nbytes / 1e6:10.3f} MB {speed / 1e9:7.0f} GB/s "
        f"{speed / bench.bandwidth:5.0%} of a copy{'' if case.is_cold else ' *'}",
        flush=True,
    )
    return {
        **where,
        "kernel": case.name,
        "us": us,
        "bytes": case.nbytes,
        "of_copy": speed / bench.bandwidth,
        "cold": case.is_cold,
    }


def attention(bench: Bench) -> Lines:
    """FlashMLA, its wrapper and Triton."""
    lines, missing = [], []
    for tokens in bench.sizes.tokens:
        for extra in bench.sizes.extras:
            shape = AttentionShape(
                tokens=tokens,
                heads=bench.config.num_attention_heads,
                window=bench.sizes.window,
                extra=extra,
                cached=bench.sizes.cached,
                device=bench.device,
            )
            if bench.is_late:
                missing.append(f"{tokens} tokens, {shape.name}")
                continue
            found = measure_attention(shape, bench.flash, bench.kernels)
            show_attention(found)
            lines.append(found)
            torch.cuda.empty_cache()
    return lines, missing


def show_attention(found: Mapping[str, object]) -> None:
    times = ", ".join(f"{name} {us:.2f} us" for name, us in found["us"].items())
    print(f"tokens {found['tokens']}, {found['rows']}: {times}{'' if found['cold'] else ' *'}", flush=True)
    if "wrapper_over_bare" not in found:
        return
    over = found["wrapper_over_bare"]
    print(
        f"    wrapper over the bare call {over:+.1%} (goal < {WRAPPER_GOAL:.0%}: "
        f"{'met' if over < WRAPPER_GOAL else 'MISSED'}), with the model's inverse rope "
        f"{found['with_inverse_rope_over_bare']:+.1%}; Triton takes "
        f"{found['triton_over_wrapper_and_inverse_rope']:.2f} times as long as both"
    )
    print(f"    planning, once per step and kind of layer: {_listed(found['planning_us'], digits=1)}")
    print(f"    host time of an eager call: {_listed(found['host_us'], digits=0)}", flush=True)


def _listed(times_us: Mapping[str, float], *, digits: int) -> str:
    return ", ".join(f"{name} {us:.{digits}f} us" for name, us in times_us.items())


def selection(bench: Bench) -> Lines:
    """Scores and selection by context."""
    lines, missing = [], []
    config = bench.config
    for context in bench.sizes.contexts:
        for tokens in bench.sizes.tokens:
            if bench.is_late:
                missing.append(f"{tokens} tokens, context {context}")
                continue
            sizes = Selection(
                tokens=tokens,
                context=context,
                topk=config.index_topk,
                heads=config.index_n_heads,
                device=bench.device,
                dtype=bench.dtype,
            )
            ways = [("plain", bench.kernels), ("fp8", bench.kernels)]
            if bench.flash is not None:
                ways.append(("fp8", Kernels.FLASH_MLA))
            for indexer_dtype, kernels in ways:
                lines.append(timed(score_case(sizes, indexer_dtype, kernels), bench, tokens=tokens, context=context))
                torch.cuda.empty_cache()
            lines.append(timed(select_case(sizes, bench.kernels), bench, tokens=tokens, context=context))
            torch.cuda.empty_cache()
    return lines, missing


def choices(bench: Bench) -> Lines:
    """The choice of tokens."""
    lines, missing = [], []
    for requests, width, vocab_size in bench.sizes.chosen:
        if bench.is_late:
            missing.append(f"{requests} x {width}")
            continue
        lines.append(timed(choose_case(requests, width, vocab_size, bench.device), bench, tokens=requests * width))
    return lines, missing


SECTIONS: dict[str, Callable[[Bench], Lines]] = {
    "step": step,
    "attention": attention,
    "selection": selection,
    "choose": choices,
}


if __name__ == "__main__":
    sys.exit(main())
