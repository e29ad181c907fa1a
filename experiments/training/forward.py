"""The training forward: the model's own layers, cut into pieces that compile once for each kind of layer.

It adds to the dense forward what training needs beside the streams: indexer losses and the experts' load.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from backends.deepseek_v4.block import Block
from backends.deepseek_v4.dense import IndexerTrace, SequenceRopes, dense_attention, sequence_ropes, window_attend
from backends.deepseek_v4.hyper_connections import mix_in, mix_out
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.rope import Rope
from backends.nextn.model import NextNModel
from experiments.training.architecture import Models

# Kinds of layer, depths and losses each take a compiled variant of one function.
COMPILED_VARIANTS = 64


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What one pass over windows [B, L] leaves.

    target_BLSD   the target's streams
    nextn_BLSD    the NextN layer's streams of depth 1, 2, ...
    index_loss    sum over CSA layers of the KL from attention mass to indexer scores
    loads         tokens per expert [E] of each layer, the NextN layer's last
    """

    target_BLSD: torch.Tensor
    nextn_BLSD: tuple[torch.Tensor, ...]
    index_loss: torch.Tensor
    loads: tuple[torch.Tensor, ...]


class Trainee:
    """Models with the functions that run them, compiled or not. Holds no state of a step."""

    def __init__(self, models: Models, *, backend: str | None) -> None:
        self.models = models
        self._layer = compiled(run_layer, backend)
        self._nextn = compiled(run_nextn, backend)

    def forward(
        self,
        ids_BL: torch.Tensor,
        next_ids_BL: torch.Tensor,
        *,
        depth: int,
        select_all: torch.Tensor,
        stream_dtype: torch.dtype,
    ) -> Forward:
        """Run target and NextN layer over ``ids_BL``, teacher-forced with ``next_ids_BL``, both int64 [B, L]."""
        target, nextn = self.models.target, self.models.nextn
        ropes = sequence_ropes(target, ids_BL.shape[1], ids_BL.device)
        streams = target.embed_streams(ids_BL).to(stream_dtype)
        index_loss = torch.zeros((), device=ids_BL.device)
        loads: list[torch.Tensor] = []
        for block in target.layers:
            streams, loss, load = self._layer(block, streams, ids_BL, ropes, select_all)
            index_loss = index_loss + loss
            loads.append(load)
        embeddings = target.embed(next_ids_BL)
        outputs: list[torch.Tensor] = []
        keys: tuple[torch.Tensor, ...] = ()
        previous, total = streams, torch.zeros_like(loads[-1])
        for _ in range(depth):
            out, own, load = self._nextn(nextn, previous, embeddings, next_ids_BL, ropes.window, keys)
            outputs.append(out)
            keys, total = (*keys, own), total + load
            previous = shift(out, 1)
        return Forward(target_BLSD=streams, nextn_BLSD=tuple(outputs), index_loss=index_loss, loads=(*loads, total))


def run_layer(
    block: Block, streams: torch.Tensor, ids: torch.Tensor, ropes: SequenceRopes, select_all: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One target layer: new streams [B, L, S, D], its indexer's loss (0 without one), tokens per expert [E]."""
    config = block.config
    mixed = mix_in(streams, block.hc_attn, config)
    out, trace = dense_attention(
        block.attn,
        block.attn_norm(mixed.input),
        ropes,
        config.sliding_window,
        with_trace=True,
        select_all=select_all,
    )
    streams = mix_out(out, streams, mixed)
    loss = streams.new_zeros((), dtype=torch.float32) if trace is None else indexer_loss(trace)
    streams, load = run_experts(block, streams, ids)
    return streams, loss, load


def run_nextn(
    model: NextNModel,
    previous: torch.Tensor,
    embeddings: torch.Tensor,
    ids: torch.Tensor,
    rope: Rope,
    keys: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One depth of the NextN layer: its streams [B, L, S, D], its keys [B, L, d], tokens per expert [E].

    previous  streams that it reads: the target's at depth 1, then its own shifted by one slot
    keys      [B, L, d] of depth 1, 2, ... before this one

    Slot i holds position i at every depth. A draft of depth j there began at slot i - j + 1, so it sees depth 1's
    keys up to that slot and one key of each depth between, as at inference.
    """
    block, config = model.layer, model.config
    positions = torch.arange(ids.shape[1], device=ids.device)
    streams = model.combine(previous, embeddings, positions)
    mixed = mix_in(streams, block.hc_attn, config)
    q, own, _ = block.attn.project(block.attn_norm(mixed.input), rope)
    if keys:
        depth = len(keys) + 1
        drafted = [shift(key, depth - m) for m, key in enumerate(keys[1:], start=2)]
        chain = torch.stack((*drafted, own), dim=2)
        out = window_attend(block.attn, q, keys[0], config.sliding_window, skip=depth - 1, own_keys=chain)
    else:
        out = window_attend(block.attn, q, own, config.sliding_window)
    streams = mix_out(block.attn.output(out, rope), streams, mixed)
    streams, load = run_experts(block, streams, ids)
    return streams, own, load


def run_experts(block: Block, streams: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The second half of a block: new streams and tokens per expert, float32 [E]."""
    mixed = mix_in(streams, block.hc_ffn, block.config)
    x = block.ffn_norm(mixed.input)
    experts, weights = block.ffn.gate(x, ids)
    out = block.ffn.experts(x, experts, weights, ExpertPath.ALL) + block.ffn.shared_experts(x)
    names = torch.arange(block.config.n_routed_experts, device=x.device)
    load = (experts.flatten().unsqueeze(-1) == names).sum(0).float()
    return mix_out(out, streams, mixed), load


def indexer_loss(trace: IndexerTrace) -> torch.Tensor:
    """KL from the normalised attention mass over visible rows to the softmax of the indexer's scores.

    Mean over tokens that see a row; float32 scalar (DeepSeek-V3.2, arXiv:2512.02556, section 2.1.1).
    """
    seeing = trace.visible.any(-1)
    floor = torch.finfo(torch.float32).min
    scores = trace.scores.masked_fill(~trace.visible, floor).log_softmax(-1)
    target = trace.mass / trace.mass.sum(-1, keepdim=True).clamp_min(1e-9)
    kl = torch.where(target > 0, target * (target.clamp_min(1e-20).log() - scores), 0.0).sum(-1)
    return (kl * seeing).sum() / (seeing.sum() * kl.shape[0]).clamp_min(1)


def shift(x: torch.Tensor, slots: int) -> torch.Tensor:
    """``x`` [B, L, ...] moved ``slots`` to the right along L; the first slots are zero."""
    return torch.cat((torch.zeros_like(x[:, :slots]), x[:, : x.shape[1] - slots]), dim=1)


def compiled(function: Callable, backend: str | None) -> Callable:
    """``function`` through torch.compile with a backend, one variant per shape and kind; itself for None."""
    if backend is None:
        return function
    torch._dynamo.config.recompile_limit = COMPILED_VARIANTS
    return torch.compile(function, dynamic=False, backend=backend)
