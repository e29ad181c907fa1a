"""Training a head: the target writes texts, the head learns from them, and its acceptance is predicted and measured."""

import dataclasses
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.build import device_of, dtype_of, load_target, target_request
from experiments.checkpoints import folder_of
from experiments.schemas import EngineSchema
from experiments.training.heads import report
from experiments.training.heads.config import HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget, frozen
from experiments.training.heads.measure import measure, predict
from experiments.training.heads.objective import Batch, Teacher, loss_of, padded
from experiments.training.heads.states import DumpedStates, LiveStates, check_disk, dump_bytes
from experiments.training.heads.texts import Text, read_prompts, split_prompts, verifier_config, write_texts
from experiments.training.heads.trainees import Trainee, check_trainee, make_trainee
from experiments.training.loop import CHECKPOINT_FOLDER, CURVE_FILE, RESULT_FILE, announce, command_line
from specdec.errors import ConfigError, WorkloadError

FINAL_LR = 0.1
Say = Callable[[str], None]
Clock = Callable[[], float]
Settings = Mapping[str, Any]


def train_head(
    config: HeadTrainerConfig,
    target_settings: Settings,
    folder: Path,
    *,
    clock: Clock = time.monotonic,
    say: Say = announce,
) -> dict[str, Any]:
    """Train, store in ``folder/checkpoint``, predict and measure; returns the result, which is also written."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder.mkdir(parents=True, exist_ok=True)
    whole = whole_settings(config, target_settings)
    device, dtype = device_of(whole), dtype_of(whole)
    rows = read_prompts(config.text)
    loaded = load_target(whole)
    target = frozen(loaded)
    check_trainee(config, loaded, target)
    prompts = split_prompts(rows, loaded, config)
    began = clock()
    training = write_texts(loaded, prompts.training, config, dtype=dtype)
    heldout = write_texts(loaded, prompts.heldout, config, dtype=dtype)
    num_tokens = sum(len(text.tokens) for text in training)
    say(
        f"the target wrote {len(training)} texts of {num_tokens:,} tokens, and {len(heldout)} held-out ones, in "
        f"{clock() - began:.1f} s ({len(prompts.training)} and {len(prompts.heldout)} prompts)"
    )
    vocabulary, notes = draft_vocabulary(config, training, vocab_size=target.lent.head.shape[0])
    trainee = make_trainee(
        config, loaded, target, vocabulary=vocabulary, folder=folder_of(target_settings["checkpoint"])
    )
    source = state_source(config, trainee, target, training, folder, say)
    run = HeadRun(config, trainee, target, training, source)
    seconds = run.run(folder, clock=clock, say=say)
    checkpoint = folder / CHECKPOINT_FOLDER
    trainee.save(checkpoint, dtype)
    predicted = predict(trainee, target, heldout, config)
    measured_on = loaded if config.kind != "nextn" else load_target(_with_checkpoint(whole, checkpoint))
    drafter = trainee.drafting(checkpoint, config.depth)
    measured, outputs = measure(measured_on, drafter, prompts.heldout, config, dtype=dtype)
    result = {
        "command": command_line(),
        "config": dataclasses.asdict(config),
        "target": str(target_settings["checkpoint"]),
        "parameters": sum(p.numel() for p in run.parameters),
        "stored_as": "the target's own formats" if config.kind == "nextn" else str(dtype).removeprefix("torch."),
        "texts": {"training": len(training), "tokens": num_tokens, "heldout": len(heldout)},
        "steps": run.steps,
        "seconds": seconds,
        "depths": report.depth_rows(predicted, measured),
        "tokens_per_step": {
            "predicted": predicted.expected.tokens_per_step,
            "measured": measured.tokens_per_step,
        },
        "rule": verifier_config(config).build().name,
        "notes": [*notes, *_same_text(config, heldout, outputs)],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    report.write_card(checkpoint, result)
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in (*report.table(result), *result["notes"], f"head and card: {checkpoint}"):
        say(line)
    return result


def whole_settings(config: HeadTrainerConfig, target_settings: Settings) -> dict[str, Any]:
    """The settings of a run with this target, as ``experiments.build`` reads them."""
    dtype = config.dtype
    if dtype is None and config.kind == "nextn":
        # Its parameters are the checkpoint's own, and bf16 would swallow small updates.
        dtype = "fp32"
    engine = dataclasses.asdict(EngineSchema(device=config.device, dtype=dtype, max_batch=config.text.batch))
    return {"target": dict(target_settings), "engine": engine, "sampling": {"seed": config.seed}}


def check_head(config: HeadTrainerConfig, target_settings: Settings) -> None:
    """Raise SpecDecError for settings that cannot work, before anything is loaded."""
    read_prompts(config.text)
    whole = whole_settings(config, target_settings)
    device_of(whole)
    target_request(whole)
    if config.kind == "nextn" and config.dtype == "bf16":
        raise ConfigError(
            "trainer=nextn trains the checkpoint's own parameters in fp32, got bf16 (conf: trainer.dtype)"
        )


def draft_vocabulary(
    config: HeadTrainerConfig, texts: Sequence[Text], *, vocab_size: int
) -> tuple[torch.Tensor | None, list[str]]:
    """The commonest ids of the target's own text, ascending, and what share of the text they are; None for all."""
    size = config.shape.draft_vocab_size
    if config.kind != "eagle3" or not 0 < size < vocab_size:
        return None, []
    counts = Counter(token for text in texts for token in text.tokens[text.num_prompt :])
    # Ties, and what was never written, by id: small ids are the common ones of most tokenizers.
    order = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    chosen = sorted(order[:size])
    share = sum(counts[token] for token in chosen) / sum(counts.values())
    return torch.tensor(chosen), [f"draft vocabulary: {size} of {vocab_size} ids, {share:.1%} of the target's text"]


def state_source(
    config: HeadTrainerConfig,
    trainee: Trainee,
    target: FrozenTarget,
    texts: Sequence[Text],
    folder: Path,
    say: Say,
) -> LiveStates | DumpedStates:
    """Say what a dump takes, and make one if it was asked for and fits."""
    size = dump_bytes(texts, target, trainee.layers)
    how = "kept on disk" if config.dump else "made on the fly"
    say(f"states of {sum(len(text.tokens) for text in texts):,} tokens: {size / 2**20:,.1f} MiB, {how}")
    live = LiveStates(target, trainee.layers)
    if not config.dump:
        return live
    check_disk(size, folder)
    return DumpedStates(live, texts, folder, target.lent.embedding.device)


class HeadRun:
    """The training loop's state: parameters, optimizer and step number."""

    def __init__(
        self,
        config: HeadTrainerConfig,
        trainee: Trainee,
        target: FrozenTarget,
        texts: Sequence[Text],
        source: LiveStates | DumpedStates,
    ) -> None:
        self.config, self.trainee, self.target, self.texts, self.source = config, trainee, target, texts, source
        self.parameters = [p for p in trainee.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        self.steps = 0
        numbers, batch = self._batch()
        is_real = torch.arange(batch.tokens_BL.shape[1], device=batch.lens_B.device) < batch.lens_B[:, None]
        states = source.of(numbers, batch.tokens_BL)[is_real]
        trainee.begin(self._of_head(states), states[..., -target.width :])

    def run(self, folder: Path, *, clock: Clock, say: Say) -> float:
        """Step until steps or time are used up; returns the seconds. Raises WorkloadError when a loss is no number."""
        config, began = self.config, clock()
        seconds = 0.0
        while True:
            fraction = self.steps / config.max_steps if config.max_steps else _share(seconds, 60 * config.minutes)
            if fraction >= 1:
                return seconds
            lr = config.lr * rate_at(fraction, config.warmup)
            losses = self.step(lr)
            seconds = clock() - began
            if not all(map(math.isfinite, losses)):
                raise WorkloadError(f"the loss is not finite at step {self.steps}; lower it (conf: trainer.lr)")
            if self.steps % config.log_steps == 0 or self.steps == 1:
                say(report.loss_line(self.steps, seconds, losses, lr))
                row = {"step": self.steps, "seconds": round(seconds, 2), "loss": losses, "lr": lr}
                with (folder / CURVE_FILE).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    def step(self, lr: float) -> list[float]:
        """One update; the losses by depth before it."""
        config = self.config
        numbers, batch = self._batch()
        states = self.source.of(numbers, batch.tokens_BL)
        with torch.no_grad():
            logits = self.target.logits(states[..., -self.target.width :])
            teacher = Teacher.of(
                logits,
                batch.tokens_BL,
                temperature=config.text.temperature,
                target_ids_X=self.trainee.target_ids_X,
            )
        drafts = self.trainee.drafts(self._of_head(states), batch.tokens_BL, config.depth)
        total, losses = loss_of(
            drafts,
            teacher,
            batch,
            temperature=config.text.temperature,
            distil=config.distil,
            decay=config.depth_decay,
        )
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.steps += 1
        return losses

    def _batch(self) -> tuple[list[int], Batch]:
        """The texts of the next step: each pass over them in an order of its own."""
        size, count = min(self.config.batch_sequences, len(self.texts)), len(self.texts)
        per_pass = max(count // size, 1)
        number, index = divmod(self.steps, per_pass)
        order = random.Random(self.config.seed * 1_000_003 + number).sample(range(count), count)
        numbers = order[index * size : (index + 1) * size]
        chosen = [self.texts[i] for i in numbers]
        return numbers, padded(
            [text.tokens for text in chosen],
            [text.num_prompt for text in chosen],
            self.target.lent.embedding.device,
            limit=self.config.sequence_tokens,
        )

    def _of_head(self, states: torch.Tensor) -> torch.Tensor:
        return states[..., : len(self.trainee.layers) * self.target.width]


def rate_at(fraction: float, warmup: float) -> float:
    """Factor on the learning rate at a share of the run: rising, then falling linearly to a tenth."""
    if fraction < warmup:
        return max(fraction / warmup, 0.05)
    return 1 - (1 - FINAL_LR) * (fraction - warmup) / max(1 - warmup, 1e-9)


def _share(seconds: float, whole: float) -> float:
    return seconds / whole if whole else 1.0


def _with_checkpoint(whole: Settings, checkpoint: Path) -> dict[str, Any]:
    return {**whole, "target": {**whole["target"], "checkpoint": str(checkpoint)}}


def _same_text(config: HeadTrainerConfig, heldout: Sequence[Text], outputs: Sequence[Any]) -> list[str]:
    """Under the greedy rule the head must not have changed a token."""
    if verifier_config(config).build().name != "greedy":
        return []
    plain = {text.tokens for text in heldout}
    found = {(*output.prompt_ids, *output.output_ids) for output in outputs}
    missing = len(plain - found)
    return [f"lossless: {len(plain) - missing} of {len(plain)} held-out texts are those of plain decoding"]
