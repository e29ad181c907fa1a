"""What cache formats cost in acceptance on a GPU: ``python -m experiments.bench_acceptance [--save] [--seeds=N]``.

The embedded checkpoint decodes the built-in prompts with its NextN layer (gumbel rule, three draft tokens) over fp32,
bf16 and fp8 rows. Printed per storage: acceptance by position, whether it lies within the interval of the same run on
a CPU, and the difference to the CPU; then what each quantised storage costs beside the storage it replaces, paired
over prompts. Intervals are 95 % bootstraps over prompts. With the runs of several seeds (three by default) a prompt
is still one unit; only the first seed is compared with the CPU, which ran that one. Seeds that would not end within 80
seconds are left out.

    --cpu    run on a CPU in fp32 instead; --save keeps it as reference, ``experiments/results/cpu_acceptance.json``
    --save   write ``experiments/results/h200_acceptance.json``
"""

import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from experiments import run
from experiments.finished_run import FinishedRun, read_run
from experiments.measurement import obey_bench
from experiments.paired import Difference, PairedMetrics
from experiments.pairing import pair
from experiments.result_file import RESULTS, save_gpu_result
from experiments.summary import number
from specdec.bootstrap import Estimate
from specdec.errors import ConfigError, SpecDecError
from specdec.step_row import StepRow

REFERENCE = RESULTS / "cpu_acceptance.json"
RESULT = "h200_acceptance.json"
COMMAND = "python -m experiments.bench_acceptance"
GPU_SEEDS = 3
TIME_S = 80.0
DRAFT_TOKENS = 3
METRICS = (
    "tokens_per_step",
    *(f"{name}[{position}]" for name in ("conditional", "survival") for position in range(1, DRAFT_TOKENS + 1)),
)
# What metrics are made of, and no more.
KEPT_OF_ROW = (
    *("request_id", "round", "step", "seq_len", "proposed", "depth"),
    *("verified", "accepted", "emitted", "bonus", "cut", "in_loop"),
)
KEPT_OF_ENVIRONMENT = (
    *("git_commit", "code_hash", "checkpoint_hash", "prompt_set_hash"),
    *("processor", "python", "packages", "threads", "seed"),
)


class FailedRunError(SpecDecError, RuntimeError):
    """A run that a measurement is made of did not end well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Types of activations, cache rows and indexer keys."""

    dtype: str
    cache_dtype: str
    indexer_dtype: str

    @property
    def name(self) -> str:
        """In words, for a table."""
        return f"{self.dtype}, {self.cache_dtype} rows, {self.indexer_dtype} indexer"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Command-line overrides that choose it."""
        return (
            f"engine.dtype={self.dtype}",
            f"target.cache_dtype={self.cache_dtype}",
            f"target.indexer_dtype={self.indexer_dtype}",
        )


EXACT = Storage(dtype="fp32", cache_dtype="fp32", indexer_dtype="plain")
BF16 = Storage(dtype="bf16", cache_dtype="bf16", indexer_dtype="plain")
FP8_ROWS = Storage(dtype="bf16", cache_dtype="fp8", indexer_dtype="plain")
FP8_ALL = Storage(dtype="bf16", cache_dtype="fp8", indexer_dtype="fp8")
STORAGES = (EXACT, BF16, FP8_ROWS, FP8_ALL)
# (old, new): the new one minus the old one is what it costs, with a minus sign.
COSTS = ((EXACT, BF16), (BF16, FP8_ROWS), (FP8_ROWS, FP8_ALL), (BF16, FP8_ALL))


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(
        arguments, _measure_all, about=__doc__, options=("--cpu", "--save", "--seeds="), without_gpu=("--cpu",)
    )


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    given = next((each.partition("=")[2] for each in arguments if each.startswith("--seeds=")), str(GPU_SEEDS))
    if not (given.isdecimal() and int(given)):
        raise ConfigError(f"--seeds must be an integer of at least 1, got {given!r}")
    seeds = int(given)
    if "--cpu" in arguments:
        reference = decode(EXACT, "cpu", 0)
        show_positions(f"cpu, {EXACT.name}", estimates(reference))
        if "--save" in arguments:
            save_reference(reference, REFERENCE)
        return
    figures = compare(read_reference(REFERENCE), "cuda", seeds)
    if "--save" in arguments:
        save_gpu_result(RESULT, f"{COMMAND} --save --seeds={seeds}", figures)


def compare(
    reference: FinishedRun | None, device: str, num_seeds: int, overrides: Sequence[str] = ()
) -> dict[str, object]:
    """Run every storage on ``device``; all figures, printed too."""
    by_seed = decode_all(device, num_seeds, overrides)
    runs = {storage: merged([each[storage] for each in by_seed]) for storage in STORAGES}
    points = [point(storage, runs[storage], by_seed[0][storage], reference) for storage in STORAGES]
    costs = [cost(old, new, runs[old], runs[new]) for old, new in COSTS]
    cpu = None if reference is None else {name: number(each) for name, each in estimates(reference).items()}
    return {"seeds": len(by_seed), "cpu": cpu, "storages": points, "costs": costs}


def decode_all(device: str, num_seeds: int, overrides: Sequence[str]) -> list[dict[Storage, FinishedRun]]:
    """Runs of every storage, seed by seed; at most ``num_seeds``, and none after the first that would end too late."""
    started, found = perf_counter(), []
    for seed in range(num_seeds):
        begun = perf_counter()
        found.append({storage: decode(storage, device, seed, overrides) for storage in STORAGES})
        taken = perf_counter() - begun
        print(f"seed {seed}: {len(STORAGES)} runs in {taken:.0f} s", flush=True)
        if perf_counter() - started + taken > TIME_S:
            break
    return found


def decode(storage: Storage, device: str, seed: int, overrides: Sequence[str] = ()) -> FinishedRun:
    """One run of ``experiments.run``; raises FailedRunError when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *("drafter=nextn", f"drafter.num_draft_tokens={DRAFT_TOKENS}", "verifier=gumbel", "baseline=off"),
            *(f"engine.device={device}", "engine.repeats=1", f"sampling.seed={seed}", *storage.overrides),
            *(f"hydra.run.dir={folder}/run", *overrides),
        ]
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = run.main(words)
        if code:
            raise FailedRunError(f"{storage.name}, seed {seed}: exit code {code}\n{printed.getvalue()}")
        return read_run(Path(folder) / "run")


def merged(runs: Sequence[FinishedRun]) -> FinishedRun:
    """Runs of several seeds as one: a request has the steps of all of them, and stays one unit of a bootstrap."""
    return replace(runs[0], rows=tuple(row for each in runs for row in each.rows))


def point(storage: Storage, whole: FinishedRun, first: FinishedRun, reference: FinishedRun | None) -> dict[str, object]:
    """Figures of one storage, printed too."""
    found = estimates(whole)
    show_positions(storage.name, found)
    figures: dict[str, object] = {
        "storage": storage.name,
        "prompts": len(whole.outputs),
        "acceptance": {name: number(each) for name, each in found.items()},
    }
    if reference is not None:
        against = {name: verdict(each) for name, each in differences(reference, first).items()}
        for name, each in against.items():
            inside = "within" if each["within_cpu_interval"] else "OUTSIDE"
            print(
                f"    first seed, {name}: {each['gpu']['value']:.3f}, {inside} the CPU's "
                f"{interval(each['cpu'])}; difference {interval(each['difference'], signed=True)}",
                flush=True,
            )
        figures |= {"first_seed_against_cpu": against}
    return figures


def verdict(found: Difference) -> dict[str, object]:
    """A figure of the GPU beside the CPU's."""
    inside = found.old.low <= found.new.value <= found.old.high
    return {
        "cpu": number(found.old),
        "gpu": number(found.new),
        "difference": number(found.change),
        "within_cpu_interval": bool(inside),
    }


def cost(old: Storage, new: Storage, old_run: FinishedRun, new_run: FinishedRun) -> dict[str, object]:
    """What ``new`` costs beside ``old``, printed too."""
    changes = {name: number(each.change) for name, each in differences(old_run, new_run).items()}
    print(f"{new.name} minus {old.name}:")
    for name, each in changes.items():
        print(f"    {name} {interval(each, signed=True)}, {each['n']} prompts", flush=True)
    return {"old": old.name, "new": new.name, "changes": changes}


def differences(old: FinishedRun, new: FinishedRun) -> dict[str, Difference]:
    """Every metric that was observed in both runs, paired over prompts."""
    paired = PairedMetrics(pair(old, new))
    found = {name: paired.difference(name) for name in METRICS if name in paired.names}
    return {name: each for name, each in found.items() if each.old.n and each.new.n}


def estimates(finished: FinishedRun) -> dict[str, Estimate]:
    """Every metric of one run."""
    return {name: each.old for name, each in differences(finished, finished).items()}


def show_positions(name: str, found: Mapping[str, Estimate]) -> None:
    """Print survival by position."""
    print(f"{name}:")
    for metric, each in found.items():
        print(f"    {metric} {interval(number(each))}, n = {each.n}", flush=True)


def interval(each: Mapping[str, float | int | None], *, signed: bool = False) -> str:
    """``value [low, high]``."""
    form = "+.3f" if signed else ".3f"
    if each["low"] is None:
        return f"{each['value']:{form}}"
    return f"{each['value']:{form}} [{each['low']:{form}}, {each['high']:{form}}]"


def save_reference(finished: FinishedRun, path: Path) -> None:
    """Keep of a run what comparisons need."""
    content = {
        "command": f"{COMMAND} --cpu --save",
        **{key: finished.environment[key] for key in KEPT_OF_ENVIRONMENT},
        "workload": finished.config["workload"],
        "acceptance": {name: number(each) for name, each in estimates(finished).items()},
        "columns": KEPT_OF_ROW,
        "rows": [[getattr(row, name) for name in KEPT_OF_ROW] for row in finished.rows],
        "outputs": [
            {key: line[key] for key in ("request_id", "turn", "prompt_ids", "output_ids")}
            for line in finished.outputs.values()
        ],
    }
    path.parent.mkdir(exist_ok=True)
    compact = json.dumps(content, separators=(",", ":"))
    path.write_text(
        compact.replace('"rows":', '\n"rows":').replace('"outputs":', '\n"outputs":') + "\n", encoding="utf-8"
    )
    print(f"written to {path}")


def read_reference(path: Path) -> FinishedRun | None:
    """A kept run; None, said on the screen, when there is none."""
    if not path.exists():
        print(f"{path} is missing: {COMMAND} --cpu --save makes it; nothing is compared with a CPU")
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    names = content["columns"]
    return FinishedRun(
        folder=path,
        config={"workload": content["workload"]},
        environment={key: content[key] for key in KEPT_OF_ENVIRONMENT},
        rows=tuple(StepRow(**dict(zip(names, line, strict=True))) for line in content["rows"]),
        outputs={(line["request_id"], line["turn"]): line for line in content["outputs"]},
        timings=(),
        torn=frozenset(),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
