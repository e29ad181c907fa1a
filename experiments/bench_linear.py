"""How fast products of few rows read their weights: ``python -m experiments.bench_linear [--save] [WORD ...]``.

For every size and format: time of the tile in the table and of other candidates, in CUDA graphs that go through several
copies of the weight, so that none is found in the L2 cache. Beside it, in the same run: the bandwidth of a large copy,
and the library's product of bf16 weights. WORDs leave out formats and sizes: ``fp8``, ``fp4``, ``plain``, ``experts``,
``4096x8192``. ``--save`` writes the figures to ``experiments/results/linear_kernels.json``.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import torch

from backends.deepseek_v4.ops.experts import ExpertWeights
from backends.deepseek_v4.ops.experts.tiles import TILES as EXPERT_TILES
from backends.deepseek_v4.ops.experts.tiles import ExpertTiles
from backends.deepseek_v4.ops.linear.tiles import TILES, Tile, choose_splits, choose_tile, row_block
from backends.deepseek_v4.ops.route.values import Routing
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from experiments.gpu.timing import copy_bandwidth, graph_ms
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result

ROWS = (1, 4, 16, 64)
# Outputs, inputs and groups of the large products of a layer and of the head.
SIZES = ((4160, 4096, 1), (40960, 1024, 1), (8192, 4096, 8), (4096, 8192, 1), (32768, 4096, 1))
NUM_EXPERTS, TOP, WIDTH, HIDDEN = 64, 6, 2048, 4096
CYCLED_BYTES, MOST_COPIES, REPLAYS = 400 << 20, 24, 7
NUM_COMPILERS = 12
# No candidate is begun after this many seconds: the run ends within 90.
LAST_START_S = 75.0


WORDS = (*(each.value for each in WeightFormat), "experts", *(f"{outputs}x{inputs}" for outputs, inputs, _ in SIZES))


def _tile(outputs: int, inputs: int, stages: int, warps: int) -> Tile:
    return Tile(block_outputs=outputs, block_inputs=inputs, stages=stages, warps=warps)


# Tried beside the table's tile. All of a format use the instruction that the table's tiles use.
CANDIDATES = {
    WeightFormat.PLAIN: (_tile(64, 128, 3, 4), _tile(64, 128, 5, 4), _tile(64, 256, 3, 4), _tile(128, 128, 3, 4)),
    WeightFormat.FP8: (_tile(64, 128, 3, 4), _tile(64, 128, 4, 4), _tile(64, 128, 5, 4), _tile(128, 128, 4, 8)),
    WeightFormat.FP4: (_tile(64, 256, 3, 4), _tile(64, 256, 4, 4), _tile(128, 256, 3, 8)),
}
SPLITS_TRIED = (1, 2, 4, 8)
EXPERT_CANDIDATES = {
    WeightFormat.PLAIN: (
        ExpertTiles(first=_tile(128, 128, 3, 4), second=_tile(64, 128, 3, 4)),
        ExpertTiles(first=_tile(64, 128, 3, 4), second=_tile(64, 128, 5, 4)),
    ),
    WeightFormat.FP8: (
        ExpertTiles(first=_tile(64, 128, 3, 4), second=_tile(64, 128, 3, 4)),
        ExpertTiles(first=_tile(64, 128, 5, 4), second=_tile(64, 128, 5, 4)),
        ExpertTiles(first=_tile(128, 128, 4, 4), second=_tile(128, 128, 4, 8)),
    ),
    WeightFormat.FP4: (
        ExpertTiles(first=_tile(64, 256, 4, 4), second=_tile(64, 256, 4, 4)),
        ExpertTiles(first=_tile(64, 256, 2, 4), second=_tile(64, 256, 2, 4)),
        ExpertTiles(first=_tile(128, 256, 3, 8), second=_tile(128, 256, 3, 8)),
    ),
}
# Storage of routed and shared experts; the last is that of published checkpoints.
MIXTURES = (*((each, each) for each in WeightFormat), (WeightFormat.FP4, WeightFormat.FP8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One product to be timed: ``calls`` differ only in the weights that they read."""

    what: str
    rows: int
    tile: str
    nbytes: float
    calls: tuple[Callable[[], torch.Tensor], ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__, words=WORDS)


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    started = perf_counter()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {bandwidth / 1e9:.0f} GB/s")
    words = {word for word in arguments if not word.startswith("--")}
    formats = [each for each in WeightFormat if each.value in words] or list(WeightFormat)
    sizes = [each for each in SIZES if f"{each[0]}x{each[1]}" in words]
    if not sizes and "experts" not in words:
        sizes = list(SIZES)
    lines = []
    for outputs, inputs, groups in sizes:
        for weight_format in formats:
            if perf_counter() - started < LAST_START_S:
                lines += report(products(outputs, inputs, groups, weight_format), bandwidth)
                torch.cuda.empty_cache()
    for routed, shared in MIXTURES if "experts" in words or len(sizes) == len(SIZES) else ():
        if routed in formats and perf_counter() - started < LAST_START_S:
            lines += report(mixtures(routed, shared), bandwidth)
            torch.cuda.empty_cache()
    print(f"{perf_counter() - started:.0f} s")
    if "--save" in arguments:
        save(bandwidth, lines)


def products(outputs: int, inputs: int, groups: int, weight_format: WeightFormat) -> list[Timed]:
    """A linear in a format: the table's tile and the library for all row counts, candidates, and splits for one row."""
    weight = random_weight((outputs, inputs), weight_format)
    num_copies = max(2, min(MOST_COPIES, -(-CYCLED_BYTES // weight.nbytes)))
    weights = [weight] + [copy_of(weight) for _ in range(num_copies - 1)]
    splits = choose_splits(outputs, inputs)
    what = f"{outputs} x {inputs}" + (f" in {groups} groups" if groups > 1 else "")
    timed = []
    for rows in ROWS:
        x = torch.randn(rows, groups * inputs, device="cuda", dtype=torch.bfloat16)
        if weight_format is WeightFormat.PLAIN:
            calls = tuple(lambda w=w, x=x: library(x, w.values, groups) for w in weights)
            timed.append(Timed(what=what, rows=rows, tile="library", nbytes=weight.nbytes, calls=calls))
        own = choose_tile(weight_format, row_block(rows), outputs, splits, exact=False)
        tried = [(own, splits)]
        if rows != 4:
            tried += [(tile, splits) for tile in CANDIDATES[weight_format] if tile != own]
        if rows == 1:
            tried += [(own, each) for each in SPLITS_TRIED if each != splits]
        for tile, num_parts in tried:
            calls = tuple(
                lambda w=w, x=x, tile=tile, num_parts=num_parts: product(x, w, tile, num_parts, groups) for w in weights
            )
            star = " *" if (tile, num_parts) == tried[0] else ""
            name = f"{weight_format.value} {label(tile)} /{num_parts}{star}"
            timed.append(Timed(what=what, rows=rows, tile=name, nbytes=weight.nbytes, calls=calls))
    return timed


def product(x: torch.Tensor, weight: StoredWeight, tile: Tile, splits: int, groups: int) -> torch.Tensor:
    """A linear with a given tile and number of parts."""
    # Imported here, since --help must not need Triton.
    from backends.deepseek_v4.ops.linear import kernel

    parts = kernel.empty_parts(x, weight.num_outputs, weight.num_inputs, splits, torch.float32)
    kernel.run(x, weight, parts, tile, groups=groups)
    return parts


def mixtures(routed_format: WeightFormat, shared_format: WeightFormat) -> list[Timed]:
    """The experts of a layer; routings differ from call to call."""
    # Imported here, since --help must not need Triton.
    from backends.deepseek_v4.ops.experts import kernel as expert_kernel

    routed, shared = random_experts((NUM_EXPERTS,), routed_format), random_experts((), shared_format)
    shared_bytes = sum(each.nbytes for each in (shared.w1, shared.w2, shared.w3))
    expert_bytes = sum(each.nbytes for each in (routed.w1, routed.w2, routed.w3)) / NUM_EXPERTS
    what, timed = "experts", []
    if routed_format is not shared_format:
        what = f"experts, shared in {shared_format.value}"
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
        routings = [random_routing(rows) for _ in range(4)]
        num_read = sum(len(each.ids_Tk.unique()) for each in routings) / len(routings)
        for tiles in (
            None,
            *(EXPERT_CANDIDATES[routed_format] if rows != 4 and routed_format is shared_format else ()),
        ):
            calls = tuple(
                lambda r=r, x=x, tiles=tiles: expert_kernel.experts(x, r, routed, shared, limit=10.0, tiles=tiles)
                for r in routings
            )
            shown = EXPERT_TILES[routed_format] if tiles is None else tiles
            name = f"{routed_format.value} {label(shown.first)}, {label(shown.second)}{' *' if tiles is None else ''}"
            nbytes = num_read * expert_bytes + shared_bytes
            timed.append(Timed(what=what, rows=rows, tile=name, nbytes=nbytes, calls=calls))
    return timed


def label(tile: Tile) -> str:
    return f"{tile.block_outputs}x{tile.block_inputs} s{tile.stages} w{tile.warps}"


def random_weight(shape: tuple[int, ...], weight_format: WeightFormat) -> StoredWeight:
    """Random values of every format, none of them NaN."""
    *lead, outputs, inputs = shape
    if weight_format is WeightFormat.PLAIN:
        return StoredWeight(values=torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_())
    if weight_format is WeightFormat.FP8:
        # Without bit 3 no code is NaN.
        values = torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8).bitwise_and_(0xF7)
        scale_shape, stored = (*lead, -(-outputs // 128), -(-inputs // 128)), torch.float8_e4m3fn
    else:
        values = torch.randint(0, 256, (*lead, outputs, inputs // 2), device="cuda", dtype=torch.uint8)
        scale_shape, stored = (*lead, outputs, inputs // 32), torch.int8
    scales = torch.randint(118, 124, scale_shape, device="cuda", dtype=torch.uint8)
    scales = scales.view(torch.float8_e8m0fnu)
    return StoredWeight(values=values.view(stored), scales=scales, format=weight_format).pack()


def copy_of(weight: StoredWeight) -> StoredWeight:
    scales = None if weight.scales is None else weight.scales.clone()
    return replace(weight, values=weight.values.clone(), scales=scales)


def random_experts(lead: tuple[int, ...], weight_format: WeightFormat) -> ExpertWeights:
    w1, w3 = (random_weight((*lead, WIDTH, HIDDEN), weight_format) for _ in range(2))
    return ExpertWeights(w1=w1, w2=random_weight((*lead, HIDDEN, WIDTH), weight_format), w3=w3)


def random_routing(rows: int) -> Routing:
    ids = torch.rand(rows, NUM_EXPERTS, device="cuda").argsort(1)[:, :TOP].int().contiguous()
    return Routing(ids_Tk=ids, weights_Tk=torch.rand(rows, TOP, device="cuda"))


def library(x: torch.Tensor, values: torch.Tensor, groups: int) -> torch.Tensor:
    if groups == 1:
        return torch.nn.functional.linear(x, values)
    x_GTI = x.unflatten(-1, (groups, -1)).transpose(0, 1)
    return torch.bmm(x_GTI, values.unflatten(0, (groups, -1)).transpose(1, 2))


def report(timed: Sequence[Timed], bandwidth: float) -> list[dict[str, object]]:
    """Compile all, time one after the other, print a line each."""
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(lambda each: each.calls[0](), timed))
    torch.cuda.synchronize()
    lines, library_s = [], {}
    for each in timed:
        taken_s = graph_ms(each.calls, REPLAYS) / 1e3
        if each.tile == "library":
            library_s[each.rows] = taken_s
        speed = each.nbytes / taken_s
        line = {"what": each.what, "rows": each.rows, "tile": each.tile, "us": 1e6 * taken_s, "gb_per_s": speed / 1e9}
        line |= {"of_copy": speed / bandwidth}
        compared = ""
        if each.rows in library_s:
            line["library_over_it"] = library_s[each.rows] / taken_s
            compared = f"  {line['library_over_it']:.2f} times the library"
        print(
            f"{each.what:>28} {each.rows:3} rows {each.tile:32} {1e6 * taken_s:7.1f} us {speed / 1e9:6.0f} GB/s", end=""
        )
        print(f" {100 * speed / bandwidth:4.0f} %{compared}")
        lines.append(line)
    return lines


def save(bandwidth: float, lines: Sequence[dict[str, object]]) -> None:
    """Write the figures with what they were measured on; a star marks the table's tile."""
    tables = {f"{fmt.value} {rows} rows": asdict(tile) for (fmt, rows), tile in TILES.items()}
    figures = {"copy_gb_per_s": bandwidth / 1e9, "tiles": tables, "figures": list(lines)}
    save_gpu_result("linear_kernels.json", "python -m experiments.bench_linear --save", figures)


if __name__ == "__main__":
    sys.exit(main())
