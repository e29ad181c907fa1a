"""A whole round of speculative decoding on a GPU: ``python -m experiments.bench_round [--save] [--fp8] [--dry]``.

The V4-Flash-width model of ``bench_decode`` with its NextN layer, at batch 1 and 16, 1k context, 0 to 4 draft tokens.
Two measurements per point:

- Replay: the round that the engine records, as one CUDA graph over filled caches, timed between events. One replay is
  traced (CUPTI through torch.profiler) and its launches are cut into phases: prefixes of the same round that end where
  a phase ends are traced only to be counted, and must launch what the whole begins with. What of the untraced time no
  launch fills is idle: tracing itself makes the host feed a replay more slowly, so its own gaps are printed as such.
- Engine: requests through ``Engine`` over the same target and caches: median time of a round with a full batch, and
  how much of it the host worked while the device did not (``engine.execution``); what it takes beyond its replay is
  lost. Weights are random, so hardly a draft is accepted; tokens per second at a given acceptance follow from the
  round's time, which acceptance does not change.

    --fp8   fp8 rows and indexer keys, and FlashMLA where it is installed, instead of bf16 rows and Triton
    --dry   small sizes on whatever there is, to try the command; its figures mean nothing
    --save  write ``experiments/results/h200_round.json`` (``h200_round_fp8.json``)
"""

import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.vendor.flash_mla import is_available
from drafters.none import NoneDrafter
from experiments.gpu.marks import RESULT, TARGET
from experiments.gpu.models import FLASH_WIDTH, build
from experiments.gpu.phases import GAPS, cut, shares
from experiments.gpu.round_prefixes import SAMPLING, nextn_drafter, prefixes
from experiments.gpu.sanitize import SMALL
from experiments.gpu.timing import bench_device, capture, event_ms
from experiments.gpu.trace import TOOL, TraceError, trace_replay
from experiments.gpu.worlds import ROOM, World, WorldShape, make_world
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result
from specdec.engine import Engine, EngineConfig
from specdec.records import RoundRecord
from specdec.request import Request
from specdec.verifiers import GumbelVerifier

PROMPT_CHUNK = 256
ACCEPTANCES = (0.5, 0.7, 0.9)
IDLE_GOALS = {1: 0.10, 16: 0.05}
# No point is begun after so many seconds; what is missing is said.
LAST_START_S = 240.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is measured.

    new_tokens  of every request of the engine; enough that the batch is full for many rounds
    """

    raw: dict[str, object]
    batches: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    context: int
    new_tokens: int


REAL = Plan(raw=dict(FLASH_WIDTH), batches=(1, 16), draft_lengths=(0, 1, 2, 3, 4), context=1024, new_tokens=96)
DRY = Plan(raw=dict(SMALL), batches=(2,), draft_lengths=(0, 2), context=96, new_tokens=6)


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(
        arguments, _measure_all, about=__doc__, options=("--save", "--fp8", "--dry"), without_gpu=("--dry",)
    )


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    started = perf_counter()
    dry, fp8 = "--dry" in arguments, "--fp8" in arguments
    device, plan = bench_device(dry=dry), DRY if dry else REAL
    kernels = choose(device, fp8=fp8)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model, nextn = build(plan.raw, device, dtype)
    points, missing = [], []
    for batch in plan.batches:
        rows = "fp8" if fp8 else "bf16" if dtype is torch.bfloat16 else "fp32"
        shape = WorldShape(
            batch=batch,
            context=plan.context,
            cache_dtype=rows,
            indexer_dtype="fp8" if fp8 else "plain",
            num_draft_tokens=max(plan.draft_lengths),
            kernels=kernels,
        )
        world = make_world(model, nextn, shape)
        plain_us: float | None = None
        for num_drafts in plan.draft_lengths:
            if perf_counter() - started > LAST_START_S:
                missing.append(f"batch {batch}, {num_drafts} draft tokens")
                continue
            try:
                found = measure(world, num_drafts, plan, plain_us)
            except TraceError as error:
                missing.append(f"batch {batch}, {num_drafts} draft tokens: {error}")
                continue
            plain_us = found["engine"]["round_us"] if num_drafts == 0 else plain_us
            points.append(found)
            # Graphs of the engine that is gone: nothing may free them while another one is recorded.
            gc.collect()
        del world
        torch.cuda.empty_cache()
    print(f"{perf_counter() - started:.0f} s{f'; not measured: {missing}' if missing else ''}")
    if "--save" in arguments and not dry:
        words = " --fp8" if fp8 else ""
        save_gpu_result(
            f"h200_round{'_fp8' if fp8 else ''}.json",
            f"python -m experiments.bench_round --save{words}",
            {"kernels": kernels.value, "rows": rows, "tool": TOOL, "rounds": points, "not_measured": missing},
        )


def choose(device: torch.device, *, fp8: bool) -> Kernels:
    """The operators of a storage on this device."""
    if device.type == "cpu":
        return Kernels.REFERENCE
    return Kernels.FLASH_MLA if fp8 and is_available(device) else Kernels.TRITON


@torch.no_grad()
def measure(world: World, num_drafts: int, plan: Plan, plain_us: float | None) -> dict:
    """Both measurements of one point, printed too; ``plain_us`` is the engine's round without drafts."""
    replay = measure_replay(world, num_drafts)
    show_replay(world.batch, num_drafts, replay)
    engine = measure_engine(world, num_drafts, plan)
    engine["lost_us"] = engine["round_us"] - 1e3 * replay["replay_ms"]
    engine["tokens_per_second"] = rates(world.batch, num_drafts, engine["round_us"])
    if plain_us is not None:
        ours = {a: expected_tokens(a, num_drafts) * plain_us / engine["round_us"] for a in ACCEPTANCES}
        engine["speedup"] = {f"{a}": value for a, value in ours.items()}
    show_engine(engine)
    return {
        "batch": world.batch,
        "context": world.context,
        "num_draft_tokens": num_drafts,
        "replay": replay,
        "engine": engine,
    }


def measure_replay(world: World, num_drafts: int) -> dict:
    """Time of a replay, and what each phase has of one that is traced. Raises TraceError when traces disagree."""
    functions = prefixes(world, num_drafts)
    graph = capture([functions.pop(RESULT)])
    replay_ms = event_ms(graph.replay)
    whole = trace_replay(graph)
    del graph
    names = {phase: trace_replay(capture([function]), replays=1).names for phase, function in functions.items()}
    phases = cut(whole, names, last=RESULT)
    found = shares(phases, 1e3 * replay_ms)
    of_target = next(phase.num_launches for phase in phases if phase.name == TARGET)
    return {
        "replay_ms": replay_ms,
        "traced_span_us": whole.span_us,
        "phases": [{**asdict(phase), "gap_us": phase.gap_us} for phase in phases],
        "shares": found,
        "idle_share": found[GAPS],
        "traced_idle_share": whole.idle_share,
        "launches": whole.num_launches,
        "launches_of_target": of_target,
        "launches_of_target_per_layer": of_target / len(world.target.pool.kinds),
        "kernels_us": dict(sorted(whole.kernels_us.items(), key=lambda each: -each[1])[:12]),
    }


def show_replay(batch: int, num_drafts: int, replay: dict) -> None:
    """Print what one replay is made of."""
    goal, idle = IDLE_GOALS.get(batch), replay["idle_share"]
    target = "" if goal is None else f" (goal < {goal:.0%}: {'met' if idle < goal else 'MISSED'})"
    print(
        f"batch {batch:2} K={num_drafts}: replay {1e3 * replay['replay_ms']:.0f} us, idle {idle:.1%}{target}; traced "
        f"{replay['traced_span_us']:.0f} us, idle {replay['traced_idle_share']:.1%}; {replay['launches']} launches, "
        f"{replay['launches_of_target_per_layer']:.1f} per layer of the target with its embedding, index lists and head"
    )
    for phase in replay["phases"]:
        print(
            f"    {phase['name']:30} {replay['shares'][phase['name']]:6.1%} {phase['busy_us']:8.1f} us busy, "
            f"{phase['gap_us']:6.1f} us idle in the trace, {phase['num_launches']:3} launches"
        )
    print(f"    {GAPS:30} {replay['shares'][GAPS]:6.1%}", flush=True)


def measure_engine(world: World, num_drafts: int, plan: Plan) -> dict:
    """Rounds of an engine with a full batch; microseconds."""
    engine = make_engine(world, num_drafts)
    prompt_tokens = world.context + ROOM - plan.new_tokens
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, world.target.vocab_size, (world.batch, prompt_tokens), generator=generator).tolist()
    for number, prompt in enumerate(ids):
        sampling = replace(SAMPLING, max_new_tokens=plan.new_tokens, ignore_eos=True)
        engine.add(Request(request_id=f"r{number}", prompt=tuple(prompt), sampling=sampling))
    engine.record_ahead()
    engine.run()
    full = [record for record in engine.rounds if is_full(record, world.batch)]
    drafted = full[1:] if len(full) > 1 else full
    execution = engine.execution
    assert execution.host_us_per_round is not None, "decode rounds are recorded"
    other, draft = (median(values) for values in zip(*((r.other_us, r.draft_us) for r in drafted), strict=True))
    host = execution.host_us_per_round
    return {
        "rounds": len(drafted),
        "captured_rounds": execution.num_captured_rounds,
        "recordings": list(execution.captured),
        "round_us": median(record.total_us for record in drafted),
        "host_us": host,
        "host_parts_us": {
            "schedule, pages and records": other,
            "hand out drafts": draft,
            "stage, launch, read and commit": max(0.0, host - other - draft),
        },
        "tokens_per_round": sum(record.num_emitted for record in drafted) / len(drafted) / world.batch,
    }


def is_full(record: RoundRecord, batch: int) -> bool:
    """Whether a round is one of decode rows only, of every request."""
    return record.num_steps == batch and record.num_prompt_tokens == 0


def make_engine(world: World, num_drafts: int) -> Engine:
    """An engine over the world's target, caches and draft model, which records rounds of the full batch only."""
    drafter = nextn_drafter(world, num_drafts) if num_drafts else NoneDrafter()
    config = EngineConfig(
        max_batch=world.batch,
        max_context=world.target.max_context,
        prefill_chunk=PROMPT_CHUNK,
        graphs=True,
        graph_batch_sizes=(world.batch,),
        kernels=(world.target.passes.kernels or Kernels.REFERENCE).value,
    )
    groups = world.draft.cache_groups if num_drafts and world.draft is not None else ()
    return Engine(world.target, drafter, GumbelVerifier(), config, draft_groups=groups)


def show_engine(engine: dict) -> None:
    """Print what the engine adds to a replay."""
    parts = ", ".join(f"{name} {us:.0f}" for name, us in engine["host_parts_us"].items())
    print(
        f"    engine: round {engine['round_us']:.0f} us with a full batch ({engine['rounds']} rounds), "
        f"{engine['lost_us']:.0f} us beyond its replay; host busy {engine['host_us']:.0f} us a round ({parts})"
    )
    faster = engine.get("speedup", {})
    gains = f"; over plain decoding {', '.join(f'{each:.2f}' for each in faster.values())}" if faster else ""
    listed = ", ".join(f"{rate:.0f}" for rate in engine["tokens_per_second"].values())
    accepted = ", ".join(engine["tokens_per_second"])
    print(f"    at acceptance {accepted} of every drafted token: {listed} tokens/s{gains}", flush=True)


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens of a round when each drafted token is accepted with this probability if the one before it was."""
    return sum(acceptance**i for i in range(num_drafts + 1))


def rates(batch: int, num_drafts: int, round_us: float) -> dict[str, float]:
    """Acceptance -> tokens per second of the whole batch."""
    return {f"{a}": 1e6 * batch * expected_tokens(a, num_drafts) / round_us for a in ACCEPTANCES}


if __name__ == "__main__":
    sys.exit(main())
