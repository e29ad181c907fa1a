"""transformers' eager decoding of the same weights on the same GPU: the peer of a decode step."""

from collections.abc import Mapping
from statistics import median
from time import perf_counter

import torch

from backends.deepseek_v4.model import DeepseekV4Model
from experiments.as_transformers import as_transformers

PROMPT_CHUNK, STEPS = 512, 20


def peer_ms(raw: Mapping[str, object], model: DeepseekV4Model, *, batch: int, context: int) -> float:
    """Median milliseconds of one cached decode step after ``context`` tokens."""
    theirs = as_transformers(raw, model.state_dict(), device=model.embed.weight.device, dtype=model.embed.weight.dtype)
    return decode_ms(theirs, batch=batch, context=context)


@torch.inference_mode()
def decode_ms(model: torch.nn.Module, *, batch: int, context: int) -> float:
    """Fill the cache chunk by chunk, then time single tokens with the host waiting for each."""
    tokens = torch.randint(2, 30000, (batch, context), device=next(model.parameters()).device)
    cached: dict[str, object] = {}
    for start in range(0, context, PROMPT_CHUNK):
        chunk = tokens[:, start : start + PROMPT_CHUNK]
        cached = _cache_of(model(input_ids=chunk, use_cache=True, logits_to_keep=1, **cached))
    samples = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        started = perf_counter()
        cached = _cache_of(model(input_ids=tokens[:, :1], use_cache=True, **cached))
        torch.cuda.synchronize()
        samples.append(1e3 * (perf_counter() - started))
    return median(samples[2:])


def _cache_of(output: Mapping[str, object]) -> dict[str, object]:
    """The cache of an output, as the argument of the next call; its name differs between versions."""
    name = "cache" if "cache" in output else "past_key_values"
    return {name: output[name]}
