"""The losses of a run: next token, NextN at every depth, indexer; and how they add up.

The target's gradient passes through the NextN layer's inputs at all depths: the streams must carry what a drafter
needs, and at these weights the target's own loss hardly suffers (as in DeepSeek-V3, arXiv:2412.19437, section 2.2).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backends.deepseek_v4.model import DeepseekV4Model
from backends.nextn.model import NextNModel
from experiments.training.config import ObjectiveSettings
from experiments.training.forward import Trainee, compiled


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Scalars of one batch; ``total`` carries the gradient, the others are detached.

    next_token  nats per token of the target
    nextn       nats per token of the NextN layer against the text, per depth
    indexer     KL summed over CSA layers
    loads       tokens per expert of each layer, the NextN layer's last
    """

    total: torch.Tensor
    next_token: torch.Tensor
    nextn: tuple[torch.Tensor, ...]
    indexer: torch.Tensor
    loads: tuple[torch.Tensor, ...]


def target_loss(
    model: DeepseekV4Model, streams_BLSD: torch.Tensor, targets_BL: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross entropy in nats, and the logits [B, L, V] without gradient in a narrow type."""
    logits = model.logits(streams_BLSD)
    loss = F.cross_entropy(logits.flatten(0, 1), targets_BL.flatten())
    return loss, logits.detach().to(torch.bfloat16)


def nextn_loss(
    model: NextNModel,
    head: torch.nn.Linear,
    streams_BLSD: torch.Tensor,
    targets_BL: torch.Tensor,
    teacher_BLV: torch.Tensor,
    counted_L: torch.Tensor,
    distil: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of one depth, and its cross entropy against the text alone; means over the slots of ``counted_L``.

    teacher_BLV  the target's logits for the same tokens, whose distribution is imitated with weight ``distil``
    """
    logprobs = model.logits(streams_BLSD, head).log_softmax(-1)
    text = -logprobs.gather(-1, targets_BL.unsqueeze(-1)).squeeze(-1)
    imitation = -(teacher_BLV.float().softmax(-1) * logprobs).sum(-1)
    share = counted_L / (counted_L.sum() * text.shape[0])
    text_mean = (text * share).sum()
    return (1 - distil) * text_mean + distil * (imitation * share).sum(), text_mean.detach()


class Objective:
    """Settings of the losses with the functions that compute them, compiled or not."""

    def __init__(self, trainee: Trainee, settings: ObjectiveSettings, *, backend: str | None) -> None:
        self.trainee, self.settings = trainee, settings
        self._target_loss = compiled(target_loss, backend)
        self._nextn_loss = compiled(nextn_loss, backend)

    def losses(
        self,
        tokens_BM: torch.Tensor,
        *,
        select_all: torch.Tensor,
        nextn_factor: torch.Tensor,
        stream_dtype: torch.dtype,
    ) -> Losses:
        """Losses of windows ``tokens_BM`` int64 [B, L + 1]; ``nextn_factor`` scales the NextN weights."""
        models, weights = self.trainee.models, self.settings.nextn_weights
        ids, next_ids = tokens_BM[:, :-1], tokens_BM[:, 1:].contiguous()
        run = self.trainee.forward(ids, next_ids, depth=len(weights), select_all=select_all, stream_dtype=stream_dtype)
        loss, logits = self._target_loss(models.target, run.target_BLSD, next_ids)
        total = loss + self.settings.indexer * run.index_loss
        # Slot i drafts token i + 2, which the target predicts at slot i + 1; the last slot's lies outside.
        targets, teacher = next_ids.roll(-1, dims=1), logits.roll(-1, dims=1)
        slots = torch.arange(ids.shape[1], device=ids.device)
        texts: list[torch.Tensor] = []
        for step, (streams, weight) in enumerate(zip(run.nextn_BLSD, weights, strict=True)):
            counted = ((slots >= step) & (slots < ids.shape[1] - 1)).float()
            part, text = self._nextn_loss(
                models.nextn, models.target.head, streams, targets, teacher, counted, self.settings.distil
            )
            total = total + weight * nextn_factor * part
            texts.append(text)
        return Losses(
            total=total,
            next_token=loss.detach(),
            nextn=tuple(texts),
            indexer=run.index_loss.detach(),
            loads=tuple(load.detach() for load in run.loads),
        )
