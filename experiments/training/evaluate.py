"""Held-out quality: bits per byte of the target, and how well the NextN layer drafts for it.

Protocol: every held-out document by itself behind a separator, windows of the training length with half of it as
stride; a document's first window is scored whole, every later one on its second half, so each token counts once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from backends.deepseek_v4.dense import dense_forward
from backends.nextn.dense import dense_nextn
from experiments.training.architecture import Models
from experiments.training.data import TokenisedCorpus

DRAFT_TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class DraftQuality:
    """The NextN layer at one depth, teacher-forced on the text; means over scored tokens.

    next_token     cross entropy against the text, nats
    correct        share of tokens that its most likely one hits
    agrees         share where its most likely token is the target's
    overlap        sum of min(p, q) at the draft temperature: acceptance of a sampled draft under the ratio test
    survival       expected share of drafts accepted up to this depth, product of overlaps along a draft
    """

    next_token: float
    correct: float
    agrees: float
    overlap: float
    survival: float


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Held-out result at one window length.

    tokens_per_step  by number of draft tokens K = 1.., 1 + the survivals up to K
    """

    window_tokens: int
    scored_tokens: int
    scored_bytes: int
    nats_per_token: float
    bits_per_byte: float
    drafts: tuple[DraftQuality, ...]
    tokens_per_step: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def quality_from_dict(raw: Mapping[str, Any]) -> Quality:
    """A Quality from what ``as_dict`` gave, or from its JSON."""
    drafts = tuple(DraftQuality(**draft) for draft in raw["drafts"])
    return Quality(**{**raw, "drafts": drafts, "tokens_per_step": tuple(raw["tokens_per_step"])})


def context_limit(stored: Sequence[Quality]) -> int:
    """The longest window, in steps from the training length up, that predicts no worse than the training length."""
    limit = stored[0].window_tokens
    for quality in stored[1:]:
        if quality.bits_per_byte > stored[0].bits_per_byte:
            break
        limit = quality.window_tokens
    return limit


@dataclass(frozen=True, kw_only=True)
class Window:
    """A piece [length + 1] of a document, padded with the separator, and which of its targets are scored."""

    tokens: np.ndarray
    first_scored: int
    last_scored: int


def windows_of(document: np.ndarray, length: int) -> Iterator[Window]:
    """Windows that score each token of ``document`` but its first exactly once."""
    for start in range(0, max(len(document) - 1, 1), length // 2):
        piece = document[start : start + length + 1]
        first = 0 if start == 0 else length // 2
        if len(piece) - 1 <= first:
            return
        padded = np.full(length + 1, document[0], dtype=np.int64)
        padded[: len(piece)] = piece
        yield Window(tokens=padded, first_scored=first, last_scored=len(piece) - 1)


@torch.no_grad()
def evaluate(
    models: Models,
    corpus: TokenisedCorpus,
    *,
    length: int,
    sequences: int,
    depth: int,
    documents: Sequence[int] = (),
) -> Quality:
    """Quality on held-out documents (all, or those numbered) with windows of ``length``, ``sequences`` at a time.

    Runs in the parameters' own type, without compilation; ``depth`` 0 leaves the NextN layer out.
    """
    chosen = documents or range(len(corpus.heldout))
    windows = [window for number in chosen for window in windows_of(corpus.heldout[number], length)]
    device = models.target.embed.weight.device
    sizes = torch.from_numpy(corpus.token_bytes).to(device)
    totals = torch.zeros(3 + 5 * depth, dtype=torch.float64, device=device)
    for begin in range(0, len(windows), sequences):
        totals += _totals(models, windows[begin : begin + sequences], sizes, depth)
    return _quality(totals.tolist(), length, depth)


def _totals(models: Models, windows: Sequence[Window], sizes: torch.Tensor, depth: int) -> torch.Tensor:
    """Sums over scored tokens: count, bytes, nats; then per depth the five means of DraftQuality."""
    tokens = torch.from_numpy(np.stack([w.tokens for w in windows])).to(sizes.device)
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    slots = torch.arange(ids.shape[1], device=ids.device)
    first = torch.tensor([w.first_scored for w in windows], device=ids.device)
    last = torch.tensor([w.last_scored for w in windows], device=ids.device)
    scored = (slots >= first[:, None]) & (slots < last[:, None])
    streams = dense_forward(models.target, ids).streams
    logits = models.target.logits(streams)
    nats = _nats(logits, targets)
    sums = [scored.sum(), sizes[targets][scored].sum(), nats[scored].sum()]
    if depth:
        sums += _draft_sums(models, streams, logits, targets, scored, depth)
    return torch.stack([value.double() for value in sums])


def _draft_sums(
    models: Models,
    streams: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    scored: torch.Tensor,
    depth: int,
) -> list[torch.Tensor]:
    """Five sums a depth. Slot i drafts the target's next token of slot i + 1, so both are compared there."""
    later, text = logits[:, 1:], targets[:, 1:]
    counted = scored[:, 1:].clone()
    p = (later / DRAFT_TEMPERATURE).softmax(-1)
    best = later.argmax(-1)
    sums: list[torch.Tensor] = []
    survival = torch.ones_like(p[..., 0])
    for step, own in enumerate(dense_nextn(models.nextn, models.target.embed, streams, targets, depth=depth)):
        counted[:, :step] = False
        draft = models.nextn.logits(own, models.target.head)[:, :-1]
        overlap = torch.minimum(p, (draft / DRAFT_TEMPERATURE).softmax(-1)).sum(-1)
        # A draft's depth j ends at slot i; its depth j - 1 lies one slot before.
        before = survival if step == 0 else torch.nn.functional.pad(survival[:, :-1], (1, 0))
        survival = before * overlap
        top = draft.argmax(-1)
        values = (_nats(draft, text), (top == text).float(), (top == best).float(), overlap, survival)
        share = counted.sum().clamp_min(1)
        sums += [value[counted].sum() * scored.sum() / share for value in values]
    return sums


def _nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")


def _quality(totals: list[float], length: int, depth: int) -> Quality:
    count, num_bytes, nats = totals[:3]
    means = [value / count for value in totals[3:]]
    drafts = tuple(
        DraftQuality(next_token=row[0], correct=row[1], agrees=row[2], overlap=row[3], survival=row[4])
        for row in (means[5 * step : 5 * step + 5] for step in range(depth))
    )
    survivals = [draft.survival for draft in drafts]
    return Quality(
        window_tokens=length,
        scored_tokens=int(count),
        scored_bytes=int(num_bytes),
        nats_per_token=nats / count,
        bits_per_byte=nats / math.log(2) / num_bytes,
        drafts=drafts,
        tokens_per_step=tuple(1 + sum(survivals[: k + 1]) for k in range(depth)),
    )
