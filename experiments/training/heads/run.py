"""HeadRun: the training loop of a head over texts that exist; knows neither engine nor evaluation."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from experiments.training.heads import report
from experiments.training.heads.batches import TextBatches
from experiments.training.heads.config import HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget
from experiments.training.heads.objective import Batch, Teacher, Weighing, loss_of, padded
from experiments.training.heads.states import DumpedStates, LiveStates
from experiments.training.heads.texts import Text
from experiments.training.heads.trainees import Trainee
from experiments.training.loop import CURVE_FILE
from specdec.errors import WorkloadError

FINAL_LR = 0.1
Say = Callable[[str], None]
Clock = Callable[[], float]


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
        self._batches = TextBatches(texts, size=config.batch_sequences, limit=config.sequence_tokens, seed=config.seed)
        self._weighing = Weighing(
            temperature=config.text.temperature,
            distil=config.distil,
            decay=config.depth_decay,
            on_prompts=config.text.learn_prompts,
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
            losses = self.step(lr).tolist()
            seconds = clock() - began
            if not all(map(math.isfinite, losses)):
                raise WorkloadError(f"the loss is not finite at step {self.steps}; lower it (conf: trainer.lr)")
            if self.steps % config.log_steps == 0 or self.steps == 1:
                say(report.loss_line(self.steps, seconds, losses, lr))
                row = {"step": self.steps, "seconds": round(seconds, 2), "loss": losses, "lr": lr}
                with (folder / CURVE_FILE).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    def step(self, lr: float) -> torch.Tensor:
        """One update; the losses by depth before it, float32 [K] on the device."""
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
        total, losses_K = loss_of(drafts, teacher, batch, self._weighing)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.steps += 1
        return losses_K

    def _batch(self) -> tuple[list[int], Batch]:
        """The texts of the next step."""
        numbers = self._batches.of(self.steps)
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
