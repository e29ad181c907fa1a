"""How fast products of few rows read their weights: ``python -m experiments.bench_linear [--save]``, on a GPU.

For every size and format: time of the tile in the table and of other candidates, in CUDA graphs that go through several
copies of the weight, so that none is found in the L2 cache. Beside it, in the same run: the bandwidth of a large copy,
and the library's product of bf16 weights. ``--save`` writes the figures to ``experiments/results/linear_kernels.json``.
"""

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from backends.deepseek_v4.ops.experts import ExpertWeights
from backends.deepseek_v4.ops.experts import kernel as expert_kernel
from backends.deepseek_v4.ops.experts.tiles import TILES as EXPERT_TILES
from backends.deepseek_v4.ops.experts.tiles import ExpertTiles
from backends.deepseek_v4.ops.linear import kernel
from backends.deepseek_v4.ops.linear.tiles import TILES, Tile, choose_splits, row_block
from backends.deepseek_v4.ops.route.values import Routing
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from experiments.environment import environment_of
from experiments.fingerprint import inputs_of

RESULT = Path(__file__).parent / "results" / "linear_kernels.json"
KEPT = ("git_commit", "code_hash", "device_name", "platform", "python", "packages")
ROWS = (1, 4, 16, 64)
# Outputs, inputs and groups of the large products of a layer and of the head.
SIZES = ((4160, 4096, 1), (40960, 1024, 1), (8192, 4096, 8), (4096, 8192, 1), (32768, 4096, 1))
NUM_EXPERTS, TOP, WIDTH, HIDDEN = 64, 6, 2048, 4096
CYCLED_BYTES, MOST_COPIES, REPLAYS = 400 << 20, 24, 5
COPIED_BYTES = 1 << 30
NUM_COMPILERS = 12
# No candidate is begun after this many seconds: the run ends within 90.
LAST_START_S = 75.0


def _tile(outputs: int, inputs: int, stages: int, warps: int) -> Tile:
    return Tile(block_outputs=outputs, block_inputs=inputs, stages=stages, warps=warps)


# Tried beside the table's tile, for blocks of 16 rows. All of a format use the instruction that the table's tiles use.
CANDIDATES = {
    WeightFormat.PLAIN: (_tile(64, 128, 3, 4), _tile(64, 128, 5, 4), _tile(64, 256, 3, 4), _tile(128, 128, 3, 4)),
    WeightFormat.FP8: (_tile(32, 128, 4, 2), _tile(64, 128, 5, 2), _tile(16, 128, 6, 1)),
    WeightFormat.FP4: (_tile(32, 256, 3, 2), _tile(64, 128, 5, 2), _tile(64, 256, 3, 2)),
}
EXPERT_CANDIDATES = {
    WeightFormat.PLAIN: (
        ExpertTiles(first=_tile(64, 64, 5, 4), second=_tile(64, 128, 3, 4)),
        ExpertTiles(first=_tile(64, 128, 2, 4), second=_tile(64, 128, 5, 4)),
        ExpertTiles(first=_tile(64, 64, 4, 4), second=_tile(64, 256, 3, 4)),
    ),
    WeightFormat.FP8: (
        ExpertTiles(first=_tile(32, 128, 6, 2), second=_tile(64, 128, 5, 2)),
        ExpertTiles(first=_tile(16, 128, 6, 1), second=_tile(16, 128, 6, 1)),
    ),
    WeightFormat.FP4: (
        ExpertTiles(first=_tile(32, 128, 6, 2), second=_tile(64, 128, 5, 2)),
        ExpertTiles(first=_tile(16, 256, 4, 1), second=_tile(32, 256, 3, 2)),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One product to be timed: ``calls`` differ only in the weights that they read."""

    what: str
    rows: int
    tile: str
    nbytes: float
    calls: tuple[Callable[[], torch.Tensor], ...]


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    started = perf_counter()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {bandwidth:.0f} GB/s")
    lines = []
    for outputs, inputs, groups in SIZES:
        for weight_format in WeightFormat:
            if perf_counter() - started < LAST_START_S:
                lines += report(products(outputs, inputs, groups, weight_format), bandwidth)
                torch.cuda.empty_cache()
    for weight_format in WeightFormat:
        if perf_counter() - started < LAST_START_S:
            lines += report(mixtures(weight_format), bandwidth)
            torch.cuda.empty_cache()
    print(f"{perf_counter() - started:.0f} s")
    if "--save" in arguments:
        save(bandwidth, lines)


def products(outputs: int, inputs: int, groups: int, weight_format: WeightFormat) -> list[Timed]:
    """A linear in a format: the table's tile for all row counts, candidates for one row and 16, and the library."""
    group_inputs = inputs
    weight = random_weight((outputs, group_inputs), weight_format)
    num_copies = max(2, min(MOST_COPIES, -(-CYCLED_BYTES // weight.nbytes)))
    weights = [weight] + [copy_of(weight) for _ in range(num_copies - 1)]
    splits = choose_splits(outputs, group_inputs)
    what = f"{outputs} x {inputs}" + (f" in {groups} groups" if groups > 1 else "")
    timed = []
    for rows in ROWS:
        x = torch.randn(rows, groups * group_inputs, device="cuda", dtype=torch.bfloat16)
        if weight_format is WeightFormat.PLAIN:
            calls = tuple(lambda w=w, x=x: library(x, w.values, groups) for w in weights)
            timed.append(Timed(what=what, rows=rows, tile="library", nbytes=weight.nbytes, calls=calls))
        own = TILES[weight_format, row_block(rows)]
        for tile in (own, *(CANDIDATES[weight_format] if rows in (1, 16) else ())):
            calls = tuple(
                lambda w=w, x=x, tile=tile: kernel.run(x, w, tile, splits, groups=groups, dtype=torch.float32)
                for w in weights
            )
            name = f"{weight_format.value} {label(tile)} /{splits}{' *' if tile == own else ''}"
            timed.append(Timed(what=what, rows=rows, tile=name, nbytes=weight.nbytes, calls=calls))
    return timed


def mixtures(weight_format: WeightFormat) -> list[Timed]:
    """The experts of a layer in a format; routings differ from call to call."""
    routed, shared = (random_experts(lead, weight_format) for lead in ((NUM_EXPERTS,), ()))
    expert_bytes = sum(each.nbytes for each in (shared.w1, shared.w2, shared.w3))
    timed = []
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
        routings = [random_routing(rows) for _ in range(4)]
        num_read = sum(len(each.ids_Tk.unique()) for each in routings) / len(routings) + 1
        for tiles in (None, *(EXPERT_CANDIDATES[weight_format] if rows in (1, 16) else ())):
            calls = tuple(
                lambda r=r, x=x, tiles=tiles: expert_kernel.experts(x, r, routed, shared, limit=10.0, tiles=tiles)
                for r in routings
            )
            shown = EXPERT_TILES[weight_format] if tiles is None else tiles
            name = f"{weight_format.value} {label(shown.first)}, {label(shown.second)}{' *' if tiles is None else ''}"
            timed.append(Timed(what="experts", rows=rows, tile=name, nbytes=num_read * expert_bytes, calls=calls))
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
    return StoredWeight(values=values.view(stored), scales=scales.view(torch.float8_e8m0fnu), format=weight_format)


def copy_of(weight: StoredWeight) -> StoredWeight:
    scales = None if weight.scales is None else weight.scales.clone()
    return StoredWeight(values=weight.values.clone(), scales=scales, format=weight.format)


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


def copy_bandwidth() -> float:
    """GB/s of a large copy, bytes read and written."""
    source = torch.randint(0, 256, (COPIED_BYTES,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / seconds((lambda: target.copy_(source),)) / 1e9


def seconds(calls: Sequence[Callable[[], torch.Tensor]]) -> float:
    """Median seconds of a call when all of them follow each other in a graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    samples_ms = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples_ms.append(begin.elapsed_time(end))
    return median(samples_ms) / 1e3 / len(calls)


def report(timed: Sequence[Timed], bandwidth: float) -> list[dict[str, object]]:
    """Compile all, time one after the other, print a line each."""
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(lambda each: each.calls[0](), timed))
    torch.cuda.synchronize()
    lines, library_s = [], {}
    for each in timed:
        taken_s = seconds(each.calls)
        if each.tile == "library":
            library_s[each.rows] = taken_s
        speed = each.nbytes / taken_s / 1e9
        line = {"what": each.what, "rows": each.rows, "tile": each.tile, "us": 1e6 * taken_s, "gb_per_s": speed}
        line |= {"of_copy": speed / bandwidth}
        compared = ""
        if each.rows in library_s:
            line["library_over_it"] = library_s[each.rows] / taken_s
            compared = f"  {line['library_over_it']:.2f} times the library"
        print(f"{each.what:>28} {each.rows:3} rows {each.tile:32} {1e6 * taken_s:7.1f} us {speed:6.0f} GB/s", end="")
        print(f" {100 * speed / bandwidth:4.0f} %{compared}")
        lines.append(line)
    return lines


def save(bandwidth: float, lines: Sequence[dict[str, object]]) -> None:
    """Write the figures with what they were measured on; a star marks the table's tile."""
    environment = environment_of(
        device=torch.device("cuda"), dtype=torch.bfloat16, threads=1, seed=0, inputs=inputs_of(None, prompts="")
    )
    tables = {f"{fmt.value} {rows} rows": asdict(tile) for (fmt, rows), tile in TILES.items()}
    content = {
        "command": "python -m experiments.bench_linear --save",
        **{key: environment[key] for key in KEPT},
        "copy_gb_per_s": bandwidth,
        "tiles": tables,
        "figures": list(lines),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULT}")


if __name__ == "__main__":
    main(sys.argv[1:])
