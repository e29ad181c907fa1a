"""Trial runs: can a model's cache go back, and how large is it? Found by running a few tokens."""

import torch

from backends.hf.cache import RowCache
from backends.hf.model import CausalModel
from backends.hf.passes import Span, parts_of
from backends.hf.placement import place

TRIAL_TOKENS = 9
KEPT_TOKENS = 5


def slot_bytes(model: CausalModel) -> int:
    """Bytes of one position of one row over all layers."""
    cache = RowCache(num_layers=model.num_layers, max_rows=1)
    _run(model, cache, [Span(row=0, start=0, length=1, first=0)], torch.zeros(1, dtype=torch.int64), num_chunks=0)
    return cache.slot_bytes


def trial_error(model: CausalModel) -> float:
    """Largest error of cached logits after tokens were taken back, against no cache, as a share of the largest logit.

    Two rows of different lengths run side by side: a prompt each, a wrong draft each, then the right tokens.
    """
    generator = torch.Generator().manual_seed(0)
    right_2X = torch.randint(0, model.vocab_size, (2, TRIAL_TOKENS), generator=generator)
    wrong_2X = (right_2X + 1) % model.vocab_size
    cache = RowCache(num_layers=model.num_layers, max_rows=3)
    starts, ends = (KEPT_TOKENS, KEPT_TOKENS - 2), (TRIAL_TOKENS, TRIAL_TOKENS - 1)
    _run_rows(model, cache, right_2X, starts=(0, 0), ends=starts, num_chunks=2)
    _run_rows(model, cache, wrong_2X, starts=starts, ends=(TRIAL_TOKENS, TRIAL_TOKENS), num_chunks=0)
    found_2QV = _run_rows(model, cache, right_2X, starts=starts, ends=ends, num_chunks=0)
    expected_2XV = model.uncached(right_2X.to(model.device), columns=range(TRIAL_TOKENS)).logits_BCV.float()
    error = 0.0
    for found_QV, expected_XV, start, end in zip(found_2QV, expected_2XV, starts, ends, strict=True):
        difference = found_QV[: end - start].float() - expected_XV[start:end]
        error = max(error, float(difference.abs().max() / expected_2XV.abs().max()))
    return error


def _run_rows(
    model: CausalModel,
    cache: RowCache,
    tokens_2X: torch.Tensor,
    *,
    starts: tuple[int, int],
    ends: tuple[int, int],
    num_chunks: int,
) -> torch.Tensor:
    """A pass over two texts in rows 0 and 2, which no slice holds; logits of the last call."""
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    spans = [
        Span(row=0, start=starts[0], length=lengths[0], first=0),
        Span(row=2, start=starts[1], length=lengths[1], first=lengths[0]),
    ]
    tokens_T = torch.cat([tokens_2X[b, starts[b] : ends[b]] for b in range(2)])
    return _run(model, cache, spans, tokens_T, num_chunks=num_chunks)


def _run(
    model: CausalModel, cache: RowCache, spans: list[Span], tokens_T: torch.Tensor, *, num_chunks: int
) -> torch.Tensor:
    logits_BQV = torch.empty(0)
    for part in parts_of(spans, num_chunks=num_chunks):
        placement = place(part, tokens_T.to(model.device), dtype=model.dtype)
        logits_BQV = model.cached(placement, cache, columns=range(part.width)).logits_BCV
    return logits_BQV
