"""Rollback: can a model's cache go back to an earlier position? Answered by name and by trial, when it is loaded."""

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from backends.hf.cache import RowCache
from backends.hf.model import CausalModel
from backends.hf.passes import Span, parts_of
from backends.hf.placement import place
from specdec.errors import UnsupportedError

# The largest logit error of the trial, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
LONG_ROPE = "longrope"
# What a model raises for a mask or a cache of a form that it does not take.
FORM_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
TRIAL_TOKENS = 9
KEPT_TOKENS = 5


def check_family(model: CausalModel) -> None:
    """Raise UnsupportedError for a model of which a token's logits depend on more than the tokens up to it."""
    if model.model.config.is_encoder_decoder:
        raise UnsupportedError(f"{model.name} is an encoder-decoder; a target is a decoder-only model (conf: target)")
    limit = _fixed_rope_limit(model)
    if limit is not None and model.max_context > limit:
        raise UnsupportedError(
            f"{model.name} turns every position by another angle once a text exceeds {limit} tokens ({LONG_ROPE}), "
            f"so what is cached would not fit; limit it to {limit} (conf: target.params.max_context)"
        )


def _fixed_rope_limit(model: CausalModel) -> int | None:
    """Most tokens for which the angles of positions are fixed; None where they always are."""
    settings = model.config.to_dict()
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if rope.get("rope_type") != LONG_ROPE:
        return None
    return rope.get("original_max_position_embeddings") or settings.get("original_max_position_embeddings")


def obstacle(model: CausalModel) -> str | None:
    """Why the cache of this model cannot go back, in words; None when nothing is known against it."""
    if model.model._is_stateful:
        return "it is stateful: its recurrent state holds every token that it has seen"
    if not model.takes_cache:
        return "its forward takes no cache"
    kinds = sorted(
        {type(layer).__name__ for layer in DynamicCache(config=model.config).layers} - {DynamicLayer.__name__}
    )
    if kinds:
        return f"its cache has layers that forget or fold positions ({', '.join(kinds)})"
    return None


def check_rollback(model: CausalModel) -> None:
    """Raise UnsupportedError, naming the model, unless its cache can go back and a trial shows that it does."""
    reason = obstacle(model)
    if reason is None:
        reason = failed_trial(model)
    if reason is None:
        return
    raise UnsupportedError(
        f"{model.name} cannot be rolled back: {reason}. target.params.rollback=recompute runs every text from its "
        f"beginning instead, which is exact and slow (conf: target.params.rollback)"
    )


def failed_trial(model: CausalModel) -> str | None:
    """What went wrong when tokens were taken back and computed again, in words; None when nothing did."""
    try:
        error, allowed = trial_error(model), TOLERANCES[model.dtype]
    except FORM_ERRORS as refusal:
        return f"it takes no mask of [batch, 1, queries, keys] or no cache by slot ({refusal})"
    if error <= allowed:
        return None
    return f"going back and computing again gave other logits (relative error {error:.2g}, {allowed:g} allowed)"


def trial_error(model: CausalModel) -> float:
    """Largest relative error of cached logits, against a model without a cache, after tokens were taken back.

    Two rows of different lengths run side by side: a prompt each, a wrong draft each, then the right tokens.
    """
    generator = torch.Generator().manual_seed(0)
    right_2X = torch.randint(0, model.vocab_size, (2, TRIAL_TOKENS), generator=generator)
    wrong_2X = (right_2X + 1) % model.vocab_size
    cache = RowCache(num_layers=model.num_layers, max_rows=3)
    starts = (KEPT_TOKENS, KEPT_TOKENS - 2)
    _run(model, cache, right_2X, starts=(0, 0), ends=starts, num_chunks=2)
    _run(model, cache, wrong_2X, starts=starts, ends=(TRIAL_TOKENS, TRIAL_TOKENS), num_chunks=0)
    found = _run(model, cache, right_2X, starts=starts, ends=(TRIAL_TOKENS, TRIAL_TOKENS - 1), num_chunks=0)
    expected_2XV = model.uncached(right_2X.to(model.device), columns=range(TRIAL_TOKENS)).logits_BCV.float()
    error = 0.0
    for row, (start, logits_CV) in enumerate(zip(starts, found[0], strict=True)):
        num_rows = (TRIAL_TOKENS, TRIAL_TOKENS - 1)[row] - start
        difference = logits_CV[:num_rows].float() - expected_2XV[row, start : start + num_rows]
        error = max(error, float(difference.abs().max() / expected_2XV.abs().max()))
    return error


def _run(
    model: CausalModel,
    cache: RowCache,
    tokens_2X: torch.Tensor,
    *,
    starts: tuple[int, int],
    ends: tuple[int, int],
    num_chunks: int,
) -> list[torch.Tensor]:
    """One pass over both rows, stored in rows 0 and 2; logits of each call."""
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    spans = [
        Span(row=0, start=starts[0], length=lengths[0], first=0),
        Span(row=2, start=starts[1], length=lengths[1], first=lengths[0]),
    ]
    packed_T = torch.cat([tokens_2X[b, starts[b] : ends[b]] for b in range(2)]).to(model.device)
    outputs = []
    for part in parts_of(spans, num_chunks=num_chunks):
        placement = place(part, packed_T, dtype=model.dtype)
        outputs.append(model.cached(placement, cache, columns=range(part.width)).logits_BCV)
    return outputs
