"""Whole-sequence NextN: the teacher-forced pass and the recursive depths that drafting several tokens runs.

At depth j the module is fed its own streams of depth j - 1, one slot to the left, as at inference: the keys of
slots before the draft come from depth 1 (target streams), those within the draft from the depths between.
"""

import torch
from torch import nn

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.block import AttentionStep
from backends.deepseek_v4.dense import window_attend
from backends.deepseek_v4.rope import Rope
from backends.nextn.model import NextNModel


def dense_nextn(
    model: NextNModel,
    embed: nn.Embedding,
    streams_BLSD: torch.Tensor,
    next_tokens_BL: torch.Tensor,
    *,
    depth: int = 1,
) -> tuple[torch.Tensor, ...]:
    """Own streams [B, L, S, D] of depths 1..``depth``, teacher-forced with ``next_tokens_BL`` at every depth.

    streams_BLSD    target streams after the last layer, positions 0..L-1
    next_tokens_BL  int64; entry i is the token at position i + 1

    Slot i of every depth predicts token i + 2; slots below ``j - 1`` of depth j have no draft that long behind
    them and hold finite values to be ignored.
    """
    positions = torch.arange(next_tokens_BL.shape[1], device=next_tokens_BL.device)
    rope = model.window_rotary(positions)
    embeddings = embed(next_tokens_BL)
    window = model.config.sliding_window
    keys: tuple[torch.Tensor, ...] = ()
    outputs: list[torch.Tensor] = []
    previous = streams_BLSD
    for _ in range(depth):
        made: list[torch.Tensor] = []
        step = _step(rope, window, keys, made)
        outputs.append(model(previous, embeddings, positions, next_tokens_BL, step))
        keys = (*keys, made[0])
        previous = _shift(outputs[-1], 1)
    return tuple(outputs)


def _step(rope: Rope, window: int, keys: tuple[torch.Tensor, ...], made: list[torch.Tensor]) -> AttentionStep:
    """Attention of the next depth given the ``keys`` [B, L, d] of all before; appends its own keys to ``made``."""

    def run(attention: Attention, x: torch.Tensor) -> torch.Tensor:
        q, own, _ = attention.project(x, rope)
        made.append(own)
        if not keys:
            return attention.output(window_attend(attention, q, own, window), rope)
        # A draft of depth j at slot p began at slot p - j + 1; its key of depth m lies at slot p - j + m.
        depth = len(keys) + 1
        drafted = [_shift(k, depth - m) for m, k in enumerate(keys[1:], start=2)]
        own_keys = torch.stack((*drafted, own), dim=2)
        out = window_attend(attention, q, keys[0], window, skip=depth - 1, own_keys=own_keys)
        return attention.output(out, rope)

    return run


def _shift(x: torch.Tensor, slots: int) -> torch.Tensor:
    """``x`` [B, L, ...] moved ``slots`` to the right along L; the first slots are zero."""
    return torch.cat((torch.zeros_like(x[:, :slots]), x[:, : x.shape[1] - slots]), dim=1)
