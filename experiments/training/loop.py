"""The training loop: data, steps by the clock, state in the run folder, evaluation as stored, export.

Runs without Hydra: ``python -m experiments.training.loop CONFIG.json FOLDER``.
"""

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.training import card, export
from experiments.training.architecture import Models, build_models, official_config
from experiments.training.batches import WindowBatches
from experiments.training.config import TrainerConfig, config_from_dict, config_to_dict
from experiments.training.data import TokenisedCorpus, load_corpus
from experiments.training.device import require_device
from experiments.training.evaluate import Quality, context_limit, evaluate
from experiments.training.forward import Trainee
from experiments.training.objective import Losses, Objective
from experiments.training.optimizer import TrainingOptimizer, balance_router
from experiments.training.schedule import Stage, stage_at
from specdec.errors import WorkloadError

STATE_FILE = "state.pt"
CURVE_FILE = "curve.jsonl"
RESULT_FILE = "result.json"
CHECKPOINT_FOLDER = "checkpoint"
STREAM_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Longer windows that the finished model is scored on, in units of the training length.
LONGER_WINDOWS = (2, 4, 8)

Clock = Callable[[], float]


@dataclass(kw_only=True)
class Progress:
    """How far a run is: finished steps, and seconds spent in the loop by this and earlier processes."""

    steps: int = 0
    seconds: float = 0.0


class Run:
    """One training run: models, optimizer, batches and progress. Everything that a resumed process must restore."""

    def __init__(self, config: TrainerConfig, corpus: TokenisedCorpus) -> None:
        self.config, self.corpus = config, corpus
        if config.on_cuda:
            torch.set_float32_matmul_precision("high")
        self.raw = official_config(
            config.model, context=config.data.sequence_tokens, bos=corpus.separator, eos=corpus.separator
        )
        self.models: Models = build_models(self.raw, seed=config.seed, device=config.device)
        self.optimizer = TrainingOptimizer(self.models.trained(), config.optimizer)
        trainee = Trainee(self.models, backend=config.backend)
        self.objective = Objective(trainee, config.objective, backend=config.backend)
        self.batches = WindowBatches(
            torch.from_numpy(corpus.train.astype("int32")),
            length=config.data.sequence_tokens,
            sequences=config.batch_sequences,
            seed=config.seed,
            device=config.device,
        )
        self.progress = Progress()

    def fraction(self) -> float:
        """Share of the run that has passed, by steps if they are limited, else by time."""
        if self.config.max_steps:
            return self.progress.steps / self.config.max_steps
        return self.progress.seconds / (60 * self.config.minutes) if self.config.minutes else 1.0

    def step(self) -> tuple[Stage, Losses]:
        """One optimizer step; the losses are those before it."""
        stage = stage_at(self.fraction(), self.config.schedule, self.config.objective)
        losses = self._gradients(stage)
        self.optimizer.step(stage)
        self._balance(losses, stage)
        self.progress.steps += 1
        return stage, losses

    def rehearse(self) -> None:
        """Compile everything with a step that changes nothing, so that the schedule's clock starts after it."""
        self._gradients(stage_at(0.0, self.config.schedule, self.config.objective))
        for parameter in self.models.trained().values():
            parameter.grad = None
        if self.config.on_cuda:
            torch.cuda.synchronize(self.config.device)

    def _gradients(self, stage: Stage) -> Losses:
        config = self.config
        tokens = self.batches.batch(self.progress.steps)
        bf16 = config.compute_dtype == "bf16"
        with torch.autocast("cuda" if config.on_cuda else "cpu", dtype=torch.bfloat16, enabled=bf16):
            losses = self.objective.losses(
                tokens,
                select_all=torch.tensor(not stage.sparse, device=config.device),
                nextn_factor=torch.tensor(stage.nextn, device=config.device),
                stream_dtype=STREAM_DTYPES[config.compute_dtype],
            )
        losses.total.backward()
        return losses

    def save(self, folder: Path) -> None:
        """Write the whole state atomically."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "parameters": self.models.parameters(),
            "steps": self.progress.steps,
            "seconds": self.progress.seconds,
        }
        torch.save(state, folder / (STATE_FILE + ".part"))
        os.replace(folder / (STATE_FILE + ".part"), folder / STATE_FILE)

    def load(self, folder: Path) -> None:
        """Continue from a saved state."""
        state = torch.load(folder / STATE_FILE, map_location=self.config.device, weights_only=True)
        parameters = self.models.parameters()
        for name, value in state["parameters"].items():
            parameters[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(steps=state["steps"], seconds=state["seconds"])

    def _balance(self, losses: Losses, stage: Stage) -> None:
        blocks = [*self.models.target.layers, self.models.nextn.layer]
        for block, load in zip(blocks, losses.loads, strict=True):
            if not block.ffn.gate.is_hash:
                balance_router(block.ffn.gate.bias, load, self.config.optimizer.router_step * stage.lr)


def announce(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)


def train(
    config: TrainerConfig, folder: Path, *, clock: Clock = time.monotonic, say: Callable[[str], None] = announce
) -> dict[str, object]:
    """Train, evaluate as stored, and export to ``folder/checkpoint``; returns the result that is also written.

    A run that was interrupted continues from ``folder/state.pt``. ``clock`` gives seconds. Raises ConfigError for a
    device that is not there.
    """
    require_device(config.device)
    folder.mkdir(parents=True, exist_ok=True)
    begin = clock()
    corpus = load_corpus(config.data, Path(config.data.cache or folder / "tokens.npz"), config.seed)
    say(f"corpus: {len(corpus.train):,} tokens, {len(corpus.heldout)} held-out documents, {clock() - begin:.1f} s")
    run = Run(config, corpus)
    if config.resume and (folder / STATE_FILE).exists():
        run.load(folder)
        say(f"resumed at step {run.progress.steps}")
    run_steps(run, folder, clock=clock, say=say)
    return finish(run, folder, say=say)


def run_steps(run: Run, folder: Path, *, clock: Clock, say: Callable[[str], None]) -> None:
    """Step until the time or the steps are used up; log the curve and save states on the way.

    Raises WorkloadError when the loss is no number any more; the state saved before stays as it is.
    """
    config = run.config
    if config.compile:
        begin = clock()
        run.rehearse()
        say(f"compiled in {clock() - begin:.1f} s")
    earlier, begin = run.progress.seconds, clock()
    saved = marked = begin
    marked_step = run.progress.steps
    while run.fraction() < 1:
        stage, losses = run.step()
        if run.progress.steps % config.log_steps == 0 or run.progress.steps <= 2:
            row = _row(run, stage, losses)
            if not math.isfinite(row["next_token"]):
                raise WorkloadError(f"the loss is not finite at step {run.progress.steps}; lower the learning rates")
            now = clock()
            tokens = (run.progress.steps - marked_step) * config.batch_sequences * config.data.sequence_tokens
            row["tokens_per_s"] = round(tokens / max(now - marked, 1e-9))
            marked, marked_step = now, run.progress.steps
            with (folder / CURVE_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            say(json.dumps(row))
        run.progress.seconds = earlier + clock() - begin
        if clock() - saved > 60 * config.save_minutes:
            run.save(folder)
            saved = clock()
    run.save(folder)


def finish(run: Run, folder: Path, *, say: Callable[[str], None]) -> dict[str, object]:
    """Export the masters, load them back as stored, evaluate, write card and result (with the whole loss curve)."""
    config = run.config
    run.optimizer.publish(rounded=False)
    export.save_state(run.models, folder / export.STATE)
    checkpoint = folder / CHECKPOINT_FOLDER
    size = export.export_checkpoint(run.models, run.raw, Path(config.data.tokenizer), checkpoint)
    say(f"checkpoint: {size / 2**20:.2f} MiB")
    unrounded = _evaluate(run, 1, config.depth)
    say(f"before rounding: {unrounded.bits_per_byte:.4f} bits per byte")
    export.load_stored(run.models, checkpoint)
    stored = [_evaluate(run, times, config.depth if times == 1 else 0) for times in (1, *LONGER_WINDOWS)]
    for quality in stored:
        say(json.dumps(quality.as_dict()))
    export.set_context(checkpoint, context_limit(stored))
    progress = {
        "steps": run.progress.steps,
        "tokens": run.progress.steps * config.batch_sequences * config.data.sequence_tokens,
        "minutes": run.progress.seconds / 60,
    }
    result = {
        "command": command_line(),
        "config": config_to_dict(config),
        "parameters": export.parameter_counts(run.models),
        "checkpoint_bytes": size,
        "progress": progress,
        "unrounded": unrounded.as_dict(),
        "stored": [quality.as_dict() for quality in stored],
        "device": torch.cuda.get_device_name(config.device) if config.on_cuda else "cpu",
        "torch": torch.__version__,
        "curve": read_curve(folder),
    }
    card.write_card(checkpoint, result, source=f"`{RESULT_FILE}` of the run folder")
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def command_line() -> str:
    """The command that started this process, as one would type it."""
    spec = sys.modules["__main__"].__spec__
    program = ["python", "-m", spec.name] if spec else [Path(sys.argv[0]).name]
    return shlex.join([*program, *sys.argv[1:]])


def read_curve(folder: Path) -> list[dict[str, object]]:
    """The loss curve of a run; steps that a resumed process took again count once, as taken last."""
    path = folder / CURVE_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = {row["step"]: row for row in map(json.loads, lines)}
    return [rows[step] for step in sorted(rows)]


def _evaluate(run: Run, times: int, depth: int) -> Quality:
    config = run.config
    return evaluate(
        run.models,
        run.corpus,
        length=times * config.data.sequence_tokens,
        sequences=max(config.eval_sequences // times, 1),
        depth=depth,
        documents=range(min(config.eval_documents, len(run.corpus.heldout))),
    )


def _row(run: Run, stage: Stage, losses: Losses) -> dict[str, object]:
    worst = max(float(load.max() / load.mean()) for load in losses.loads)
    return {
        "step": run.progress.steps,
        "fraction": round(run.fraction(), 4),
        "seconds": round(run.progress.seconds, 1),
        "lr": round(stage.lr, 4),
        "next_token": round(float(losses.next_token), 4),
        "nextn": [round(float(value), 4) for value in losses.nextn],
        "indexer": round(float(losses.indexer), 4),
        "worst_load": round(worst, 2),
        "quantised": stage.quantise,
    }


def main(arguments: list[str]) -> None:
    """``CONFIG.json FOLDER``: train with the settings of a JSON file."""
    path, folder = arguments
    train(config_from_dict(json.loads(Path(path).read_text(encoding="utf-8"))), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
