"""Rollback: can a model's cache go back to an earlier position? Answered by name and by trial, when it is loaded."""

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from backends.hf.model import CausalModel
from backends.hf.trial import trial_error
from specdec.errors import UnsupportedError

# The largest logit error of the trial, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
LONG_ROPE = "longrope"
# What a model raises for a mask or a cache of a form that it does not take.
FORM_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)


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
