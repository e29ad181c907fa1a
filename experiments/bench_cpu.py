"""How fast decoding on one CPU thread is: ``python -m experiments.bench_cpu [FOLDER] [--save]``.

In one run: plain decoding against transformers' cached decoding of the same weights, a batch of eight, verify passes
by width, and the parts of a NextN round. FOLDER is a checkpoint; without it the embedded one is taken or, where there
is none, a random one of the same shape. ``--save`` writes the figures to ``experiments/results/cpu_decode.json``.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from backends.deepseek_v4.weights.writer import write_checkpoint
from drafters.nextn import NextnConfig
from drafters.none import NoneConfig
from experiments.as_transformers import as_transformers
from experiments.build import EngineMaker
from experiments.checkpoints import EMBEDDED_FOLDER
from experiments.deepseek_v4 import LoadedV4, load
from experiments.environment import use_threads
from experiments.measurement import obey_bench
from experiments.result_file import save_cpu_result
from experiments.targets import TargetRequest
from experiments.training.architecture import build_models, official_config
from experiments.training.config import ModelSettings
from experiments.workloads import BUILTIN_PATH
from specdec.api import DrafterConfig, Target
from specdec.cache.tables import from_ragged
from specdec.engine import Engine, EngineConfig
from specdec.layout import RoundLayout
from specdec.records import RoundRecord
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.verifiers import GreedyVerifierConfig

PROMPT_TOKENS, NEW_TOKENS, NUM_PROMPTS, BATCH = 160, 48, 4, 8
WIDTHS = range(1, 9)
VERIFY_REPEATS, VERIFY_POSITION = 40, 250
DRAFT_TOKENS = (1, 4)
MAX_CONTEXT = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """Milliseconds of one thing done several times."""

    best: float
    median: float

    @classmethod
    def of(cls, samples_s: Sequence[float]) -> "Time":
        return cls(best=1e3 * min(samples_s), median=1e3 * median(samples_s))

    def __str__(self) -> str:
        return f"{self.median:7.2f} ms (best {self.best:.2f})"

    def over(self, other: "Time") -> dict[str, float]:
        """How many times as long as ``other``."""
        return {"best": self.best / other.best, "median": self.median / other.median}

    def as_dict(self) -> dict[str, float]:
        return {"best_ms": self.best, "median_ms": self.median}


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__, words=None, without_gpu=None)


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    use_threads(1)
    folders = [Path(each) for each in arguments if not each.startswith("-")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = folders[0] if folders else default_folder(Path(scratch))
        loaded = load_fp32(folder)
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        print(f"{folder}, one thread, torch {torch.__version__}")
        figures = measure(loaded, raw, prompts_of(loaded))
        if "--save" in arguments:
            save_cpu_result("cpu_decode.json", "python -m experiments.bench_cpu --save", figures, folder=folder)


def default_folder(scratch: Path) -> Path:
    """The embedded checkpoint, or random weights of its shape written to ``scratch``."""
    if EMBEDDED_FOLDER.is_dir():
        return EMBEDDED_FOLDER
    raw = official_config(ModelSettings(), context=2048, bos=2, eos=2)
    models = build_models(raw, seed=0, device="cpu")
    write_checkpoint(scratch, raw, models.parameters(), num_experts=models.config.n_routed_experts)
    return scratch


def load_fp32(folder: Path) -> LoadedV4:
    """The checkpoint with float32 weights and caches."""
    cpu = torch.device("cpu")
    return load(
        TargetRequest(folder=folder, cache_dtype="fp32", indexer_dtype="plain", device=cpu, dtype=torch.float32)
    )


def prompts_of(loaded: LoadedV4) -> list[tuple[int, ...]]:
    """Built-in prompts repeated to one length; random ids for a checkpoint without a tokenizer."""
    lines = BUILTIN_PATH.read_text(encoding="utf-8").splitlines()[:BATCH]
    if loaded.tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        shape = (len(lines), PROMPT_TOKENS)
        return [tuple(row) for row in torch.randint(3, loaded.vocab_size, shape, generator=generator).tolist()]
    prompts = []
    for line in lines:
        ids = [loaded.bos_id or 0, *loaded.tokenizer.encode(json.loads(line)["prompt"])]
        prompts.append(tuple((ids * (PROMPT_TOKENS // len(ids) + 1))[:PROMPT_TOKENS]))
    return prompts


def measure(loaded: LoadedV4, raw: dict[str, object], prompts: Sequence[tuple[int, ...]]) -> dict[str, object]:
    """All figures, printed as they come."""
    theirs, plain, plain_other, agreement = against_transformers(loaded, raw, prompts[:NUM_PROMPTS])
    print(f"transformers, one token   {theirs}")
    print(f"plain, one token          {plain}   {_times(theirs.over(plain))} as fast, {agreement} tokens agree")
    print(f"  of it outside the pass  {plain_other}")
    rounds = [r for r in decode(engine_of(loaded, NoneConfig(), BATCH), prompts) if r.num_steps == BATCH]
    batch = Time.of([r.total_us / 1e6 / BATCH for r in rounds])
    print(f"plain, one of {BATCH} tokens    {batch}   {_times(theirs.over(batch))} as fast")
    widths = verify_times(loaded)
    for width, time in widths.items():
        print(f"verify pass of {width} tokens   {time}   {_times(time.over(widths[1]))} a pass of one")
    figures = {
        "transformers_token": theirs.as_dict(),
        "plain_token": plain.as_dict() | {"speed_up": theirs.over(plain), "tokens_agree": agreement},
        "plain_token_outside_the_pass": plain_other.as_dict(),
        "batch_token": batch.as_dict() | {"batch": BATCH, "speed_up": theirs.over(batch)},
        "verify_pass": {n: time.as_dict() | {"over_one": time.over(widths[1])} for n, time in widths.items()},
    }
    return figures if loaded.models.nextn is None else figures | {"nextn": nextn_times(loaded, prompts, widths[1])}


def _times(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} times (best {ratio['best']:.2f})"


def engine_of(loaded: LoadedV4, drafter: DrafterConfig, max_batch: int) -> Engine:
    config = EngineConfig(max_batch=max_batch, max_context=MAX_CONTEXT)
    return EngineMaker(loaded, drafter, GreedyVerifierConfig().build(), config)()


def decode(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> list[RoundRecord]:
    """Greedy rounds of all prompts together; those that only decode."""
    add_all(engine, prompts)
    engine.run()
    return [record for record in engine.rounds if record.num_steps and not record.num_prompt_tokens]


def add_all(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> None:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(Request(request_id=str(number), prompt=prompt, sampling=sampling))


def against_transformers(
    loaded: LoadedV4, raw: dict[str, object], prompts: Sequence[tuple[int, ...]]
) -> tuple[Time, Time, Time, str]:
    """Time of a token there, here, here outside of the model, and how many of our tokens are theirs.

    Prompts alternate between the two, so that a busy machine slows both.
    """
    model = as_transformers(raw, loaded.models.target.state_dict())
    engine = engine_of(loaded, NoneConfig(), 1)
    theirs_s: list[float] = []
    num_same = 0
    for prompt in prompts:
        add_all(engine, [prompt])
        (output,) = engine.run()
        expected, samples_s = decode_with_transformers(model, prompt)
        theirs_s += samples_s
        num_same += sum(a == b for a, b in zip(output.output_ids, expected, strict=True))
    records = [record for record in engine.rounds if record.num_steps]
    return (
        Time.of(theirs_s),
        Time.of([record.total_us / 1e6 for record in records]),
        Time.of([record.other_us / 1e6 for record in records]),
        f"{num_same} of {NEW_TOKENS * len(prompts)}",
    )


@torch.inference_mode()
def decode_with_transformers(model: torch.nn.Module, prompt: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """Greedy tokens after a prompt with transformers' own cache, and the seconds of every single-token pass."""
    output = model(input_ids=torch.tensor([prompt]), use_cache=True)
    tokens, samples_s = [int(output.logits[0, -1].argmax())], []
    while len(tokens) < NEW_TOKENS:
        started = perf_counter()
        output = model(input_ids=torch.tensor([tokens[-1:]]), cache=output.cache, use_cache=True)
        tokens.append(int(output.logits[0, -1].argmax()))
        samples_s.append(perf_counter() - started)
    return tokens, samples_s


def verify_times(loaded: LoadedV4) -> dict[int, Time]:
    """Time of a pass by its width; widths take turns."""
    span = VERIFY_POSITION + len(WIDTHS)
    num_pages = {spec.group_id: spec.pages_for(span) + 1 for spec in loaded.cache_groups}
    target = loaded.serve(num_pages, max_context=MAX_CONTEXT, max_batch=1).target
    tables = from_ragged(
        {group_id: [range(1, pages)] for group_id, pages in num_pages.items()},
        num_reqs=1,
        bases={spec.group_id: [0] for spec in loaded.cache_groups if spec.is_sliding},
        device=target.device,
    )
    tokens_T = torch.randint(3, loaded.vocab_size, (span,), generator=torch.Generator().manual_seed(0))
    run_pass(target, tables, tokens_T[:VERIFY_POSITION], 0)
    samples_s: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(VERIFY_REPEATS):
        for width in WIDTHS:
            chunk_T = tokens_T[VERIFY_POSITION : VERIFY_POSITION + width]
            started = perf_counter()
            run_pass(target, tables, chunk_T, VERIFY_POSITION)
            samples_s[width].append(perf_counter() - started)
    return {width: Time.of(samples) for width, samples in samples_s.items()}


def run_pass(target: Target, tables: dict, tokens_T: torch.Tensor, start: int) -> None:
    num_tokens = len(tokens_T)
    layout = RoundLayout(
        rows=(0,), start_positions=(start,), query_lens=(num_tokens,), logit_rows=tuple(range(num_tokens))
    )
    target.forward(layout, tokens_T, tables)


def nextn_times(loaded: LoadedV4, prompts: Sequence[tuple[int, ...]], one: Time) -> dict[str, object]:
    """Time of drafting by number of draft tokens, and of one further draft step."""
    few, many = DRAFT_TOKENS
    times = {}
    for num_drafts in DRAFT_TOKENS:
        engine = engine_of(loaded, NextnConfig(num_draft_tokens=num_drafts, proposals="greedy"), 1)
        samples_us: list[float] = []
        for prompt in prompts[:NUM_PROMPTS]:
            # The last rounds of a request draft fewer tokens.
            samples_us += [record.draft_us for record in decode(engine, [prompt])[: -many - 1]]
            engine.rounds.clear()
        times[num_drafts] = Time.of([each / 1e6 for each in samples_us])
        ratio = _times(times[num_drafts].over(one))
        print(f"drafting {num_drafts} tokens         {times[num_drafts]}   {ratio} a pass of one")
    step = Time(
        best=(times[many].best - times[few].best) / (many - few),
        median=(times[many].median - times[few].median) / (many - few),
    )
    print(f"a further draft step      {step}   {_times(step.over(one))} a pass of one")
    return {
        "drafting": {n: time.as_dict() | {"over_one_pass": time.over(one)} for n, time in times.items()},
        "step": step.as_dict() | {"over_one_pass": step.over(one)},
    }


if __name__ == "__main__":
    sys.exit(main())
