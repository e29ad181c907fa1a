"""What a draft is compared with: the law and the text of the target, at every depth; the loss and the acceptance.

Letters besides those of ``specdec.api``: **L** tokens of a text, **S** = L - 2 slots that draft one (slot i drafts
token i + 2), **X** tokens that the head can predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec.sampling_params import GREEDY_BELOW

OUTSIDE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Texts padded at their ends.

    tokens_BL      int64
    num_prompt_B   prompt tokens of each
    lens_B         tokens of each
    """

    tokens_BL: torch.Tensor
    num_prompt_B: torch.Tensor
    lens_B: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """The target's side of a comparison at every slot.

    law_BSX     probabilities of the tokens that the head can predict, at the trained temperature (1 when greedy)
    best_BS     int64 the target's most likely token, as the head's id; OUTSIDE where it cannot predict it
    text_BS     int64 the token that the target chose, likewise
    """

    law_BSX: torch.Tensor
    best_BS: torch.Tensor
    text_BS: torch.Tensor

    @classmethod
    def of(
        cls, logits_BLV: torch.Tensor, tokens_BL: torch.Tensor, *, temperature: float, target_ids_X: torch.Tensor | None
    ) -> "Teacher":
        """From the target's logits at positions 0..L-1."""
        later = logits_BLV[:, 1:-1].float()
        law, best, text = (later / scale_of(temperature)).softmax(-1), later.argmax(-1), tokens_BL[:, 2:]
        if target_ids_X is None:
            return cls(law_BSX=law, best_BS=best, text_BS=text)
        own_V = torch.full((later.shape[-1],), OUTSIDE, dtype=torch.int64, device=later.device)
        own_V[target_ids_X] = torch.arange(len(target_ids_X), device=later.device)
        return cls(law_BSX=law[..., target_ids_X], best_BS=own_V[best], text_BS=own_V[text])


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Drafts of one depth against the target, at every slot [B, S].

    imitation  nats: cross entropy of the draft under the target's law, over the tokens that can be predicted
    text       nats on the target's text; 0 where it cannot be predicted
    overlap    sum over x of min(p, q) at the trained temperature
    agrees     1 where the most likely tokens are the same
    kept       chance that the draft is accepted, given that the target's text goes on as it does: min(1, q / p) of its
               token under the ratio test, 1 or 0 when greedy
    """

    imitation: torch.Tensor
    text: torch.Tensor
    overlap: torch.Tensor
    agrees: torch.Tensor
    kept: torch.Tensor


def scale_of(temperature: float) -> float:
    """What logits are divided by; greedy drafts are trained at 1."""
    return 1.0 if temperature < GREEDY_BELOW else temperature


def compare(logits_BMX: torch.Tensor, teacher: Teacher, *, temperature: float) -> Compared:
    """Drafts [B, L - 1, X] of one depth, whose last slot has nothing to be compared with."""
    drafted = logits_BMX[:, :-1] / scale_of(temperature)
    logprobs = drafted.log_softmax(-1)
    law, can = teacher.law_BSX, teacher.text_BS != OUTSIDE
    index = teacher.text_BS.clamp(min=0)[..., None]
    text_logprob = logprobs.gather(-1, index)[..., 0]
    agrees = drafted.argmax(-1) == teacher.best_BS
    if temperature < GREEDY_BELOW:
        kept = (drafted.argmax(-1) == teacher.text_BS).float()
    else:
        kept = (text_logprob.exp() / law.gather(-1, index)[..., 0].clamp_min(1e-30)).clamp(max=1.0) * can
    return Compared(
        imitation=-(law * logprobs).sum(-1),
        text=-text_logprob * can,
        overlap=torch.minimum(law, logprobs.exp()).sum(-1),
        agrees=agrees.float(),
        kept=kept,
    )


def counted_slots(batch: Batch, depth: int, *, on_prompts: bool = False) -> torch.Tensor:
    """Bool [B, S]: drafts of this depth that the engine could make: begun behind the prompt, within the text.

    on_prompts  those within the prompt count, too
    """
    slots = torch.arange(batch.tokens_BL.shape[1] - 2, device=batch.tokens_BL.device)
    first = 0 if on_prompts else batch.num_prompt_B[:, None] - 1
    return (slots - (depth - 1) >= first) & (slots + 2 < batch.lens_B[:, None])


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighing:
    """How a loss adds up.

    temperature  at which laws are compared
    distil       share of imitation; the rest is the text
    decay        weight of each depth relative to the one before
    on_prompts   drafts within the prompts count, too
    """

    temperature: float
    distil: float
    decay: float
    on_prompts: bool = False


def loss_of(
    drafts: Sequence[torch.Tensor], teacher: Teacher, batch: Batch, weighing: Weighing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean over depths of imitation and text, and each depth's value [K] without gradient."""
    parts = []
    for depth, logits in enumerate(drafts, start=1):
        counted = counted_slots(batch, depth, on_prompts=weighing.on_prompts)
        value = _slot_loss(logits, teacher, weighing)
        parts.append((value * counted).sum() / counted.sum().clamp_min(1))
    weights = [weighing.decay**number for number in range(len(parts))]
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)
    return total, torch.stack(parts).detach()


def _slot_loss(logits_BMX: torch.Tensor, teacher: Teacher, weighing: Weighing) -> torch.Tensor:
    """Nats [B, S] of one depth: what ``compare`` calls imitation and text, and nothing else: memory matters here."""
    logprobs = (logits_BMX[:, :-1] / scale_of(weighing.temperature)).log_softmax(-1)
    loss = -weighing.distil * (teacher.law_BSX * logprobs).sum(-1)
    if weighing.distil == 1:
        return loss
    index = teacher.text_BS.clamp(min=0)[..., None]
    text = -logprobs.gather(-1, index)[..., 0] * (teacher.text_BS != OUTSIDE)
    return loss + (1 - weighing.distil) * text


def padded(texts: Sequence[Sequence[int]], prompts: Sequence[int], device: torch.device, *, limit: int) -> Batch:
    """Texts cut to ``limit`` tokens and padded with 0."""
    cut = [list(text[:limit]) for text in texts]
    width = max(map(len, cut))
    rows = [F.pad(torch.tensor(text), (0, width - len(text))) for text in cut]
    return Batch(
        tokens_BL=torch.stack(rows).to(device),
        num_prompt_B=torch.tensor(prompts).to(device),
        lens_B=torch.tensor([len(text) for text in cut]).to(device),
    )
