"""A short trial on the machine that will train: does it compile, how fast is a step, how much memory does it take.

``python -m experiments.training.trial CONFIG.json FOLDER SECONDS BATCH...`` tries each batch size, compiled first and
eagerly if that fails, then finishes a tiny run, so that evaluation and export are exercised too.
"""

import dataclasses
import json
import sys
import time
import traceback
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.training.config import TrainerConfig, config_from_dict
from experiments.training.data import TokenisedCorpus, load_corpus
from experiments.training.loop import Run, finish
from specdec.errors import SpecDecError

WARM_STEPS = 3
TIMED_STEPS = 10
PROFILE_ROWS = 30
TRIAL_DOCUMENTS = 8


def measure(config: TrainerConfig, corpus: TokenisedCorpus, folder: Path) -> tuple[Run, dict[str, object]]:
    """Time optimizer steps after a warm-up that compiles; also a table of the costliest kernels."""
    begin = time.monotonic()
    run = Run(config, corpus)
    # Past the warm-up, so that the losses show whether the learning rates hold.
    run.progress.seconds = 60 * config.minutes * max(config.schedule.warmup, config.schedule.sparse_from)
    first = [float(run.step()[1].next_token) for _ in range(WARM_STEPS)]
    compiled_s = time.monotonic() - begin
    print(f"{config.batch_sequences} windows: {WARM_STEPS} steps after {compiled_s:.1f} s", flush=True)
    losses, step_s = _timed(run)
    # Late in a run weights are rounded to storage at every step.
    run.progress.seconds = 60 * config.minutes
    more, rounded_s = _timed(run)
    losses += more
    on_cuda = config.on_cuda
    row = {
        "batch_sequences": config.batch_sequences,
        "compile": config.compile,
        "start_s": round(compiled_s, 1),
        "step_ms": round(1000 * step_s, 1),
        "rounded_step_ms": round(1000 * rounded_s, 1),
        "tokens_per_s": round(config.batch_sequences * config.data.sequence_tokens / step_s),
        "peak_gib": round(torch.cuda.max_memory_allocated(config.device) / 2**30, 1) if on_cuda else 0.0,
        "losses": [round(value, 3) for value in (*first, *losses)],
    }
    name = f"profile_{config.batch_sequences}_{'compiled' if config.compile else 'eager'}.txt"
    (folder / name).write_text(_profile(run), encoding="utf-8")
    return run, row


def _timed(run: Run) -> tuple[list[float], float]:
    """Losses and mean seconds of some steps; reading the losses waits for the device."""
    begin = time.monotonic()
    losses = [run.step()[1].next_token for _ in range(TIMED_STEPS)]
    values = [float(value) for value in losses]
    return values, (time.monotonic() - begin) / TIMED_STEPS


def _profile(run: Run) -> str:
    on_cuda = run.config.on_cuda
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as record:
        for _ in range(2):
            float(run.step()[1].next_token)
    order = "self_cuda_time_total" if on_cuda else "self_cpu_time_total"
    return record.key_averages().table(sort_by=order, row_limit=PROFILE_ROWS, max_name_column_width=90)


def trial(config: TrainerConfig, folder: Path, *, seconds: float, batches: list[int]) -> list[dict[str, object]]:
    """Measure each batch size until ``seconds`` have passed; rows are also written to ``folder/trial.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    corpus = load_corpus(config.data, Path(config.data.cache or folder / "tokens.npz"), config.seed)
    print(f"corpus: {len(corpus.train):,} tokens in {time.monotonic() - begin:.1f} s", flush=True)
    rows: list[dict[str, object]] = []
    for batch in batches:
        for compiled in (True, False) if config.compile else (False,):
            if rows and time.monotonic() - begin > seconds:
                break
            variant = dataclasses.replace(config, batch_sequences=batch, compile=compiled)
            row = _attempt(variant, corpus, folder, finishing=not any("result" in row for row in rows))
            rows.append(row)
            print(json.dumps(row), flush=True)
            (folder / "trial.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            if "error" not in row:
                break
    return rows


def _attempt(config: TrainerConfig, corpus: TokenisedCorpus, folder: Path, *, finishing: bool) -> dict[str, object]:
    try:
        run, row = measure(config, corpus, folder)
        if finishing:
            run.config = dataclasses.replace(config, eval_documents=TRIAL_DOCUMENTS)
            row["result"] = finish(run, folder, say=print)["stored"][0]
        return row
    except (RuntimeError, TypeError, ValueError, AttributeError, SpecDecError) as error:
        text = traceback.format_exc()
        (folder / f"error_{config.batch_sequences}.txt").write_text(text, encoding="utf-8")
        return {
            "batch_sequences": config.batch_sequences,
            "compile": config.compile,
            "error": f"{type(error).__name__}: {error}"[:2000],
        }
    finally:
        torch._dynamo.reset()
        if config.on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(config.device)


def main(arguments: list[str]) -> None:
    """``CONFIG.json FOLDER SECONDS BATCH...``"""
    path, folder, seconds, *batches = arguments
    config = config_from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    trial(config, Path(folder), seconds=float(seconds), batches=[int(b) for b in batches])


if __name__ == "__main__":
    main(sys.argv[1:])
