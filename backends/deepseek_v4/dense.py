"""Whole-sequence forward: texts of equal length from position 0, differentiable, without any cache.

It is what training runs and what paged passes are compared with. Window attention works on blocks of queries
against their own and the previous block of keys, so that its cost grows linearly with the length.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.attention import Attention, attention_scores, sink_softmax
from backends.deepseek_v4.config import CSA_RATIO, HCA_RATIO, WINDOW_ONLY_RATIO
from backends.deepseek_v4.indexer import topk_mask
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.rope import Rope


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerTrace:
    """What an indexer loss needs of one CSA layer; N compressed rows.

    scores   float32 [B, L, N] indexer scores, -inf where not visible; gradients reach the indexer only
    mass     float32 [B, L, N] attention weight of every visible row before selection, summed over heads, detached
    visible  bool [L, N]
    """

    scores: torch.Tensor
    mass: torch.Tensor
    visible: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseOutput:
    """Streams [B, L, S, D] after the last layer, and one trace per CSA layer if asked for."""

    streams: torch.Tensor
    traces: tuple[IndexerTrace, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceRopes:
    """Angles of a text from position 0.

    window    positions 0..L-1, window-only layers
    compress  positions 0..L-1, compressing layers
    entries   by ratio: block starts 0, ratio, ... of the complete blocks
    """

    window: Rope
    compress: Rope
    entries: dict[int, Rope]

    def of(self, ratio: int) -> Rope:
        return self.window if ratio == WINDOW_ONLY_RATIO else self.compress


def sequence_ropes(model: DeepseekV4Model, length: int, device: torch.device) -> SequenceRopes:
    """Angles for texts of ``length`` tokens."""
    positions = torch.arange(length, device=device)
    entries = {r: model.compress_rotary(positions[: length // r] * r) for r in (CSA_RATIO, HCA_RATIO)}
    return SequenceRopes(
        window=model.window_rotary(positions), compress=model.compress_rotary(positions), entries=entries
    )


def dense_forward(
    model: DeepseekV4Model,
    tokens_BL: torch.Tensor,
    *,
    with_traces: bool = False,
    stream_dtype: torch.dtype | None = None,
) -> DenseOutput:
    """Run all layers over ``tokens_BL`` int64 [B, L]; ``model.logits`` of the streams gives the logits.

    with_traces   also return what an indexer loss needs
    stream_dtype  dtype of the residual streams; None keeps the embedding's
    """
    ropes = sequence_ropes(model, tokens_BL.shape[1], tokens_BL.device)
    traces: list[IndexerTrace] = []
    streams = model.embed_streams(tokens_BL)
    if stream_dtype is not None:
        streams = streams.to(stream_dtype)

    def step(attention: Attention, x: torch.Tensor) -> torch.Tensor:
        out, trace = dense_attention(attention, x, ropes, model.config.sliding_window, with_trace=with_traces)
        if trace is not None:
            traces.append(trace)
        return out

    for block in model.layers:
        streams = block(streams, tokens_BL, step)
    return DenseOutput(streams=streams, traces=tuple(traces))


def dense_attention(
    attention: Attention,
    x: torch.Tensor,
    ropes: SequenceRopes,
    window: int,
    *,
    with_trace: bool = False,
    select_all: torch.Tensor | None = None,
) -> tuple[torch.Tensor, IndexerTrace | None]:
    """Output [B, L, D] of one layer's attention over normalised inputs ``x`` [B, L, D], and its trace.

    select_all  bool scalar; where true a CSA layer attends all visible rows instead of its indexer's choice
    """
    rope = ropes.of(attention.ratio)
    q, keys, latent = attention.project(x, rope)
    if attention.compressor is None:
        out = window_attend(attention, q, keys, window)
        return attention.output(out, rope), None
    positions = torch.arange(x.shape[1], device=x.device)
    entry_rope = ropes.entries[attention.ratio]
    entries = attention.compressor.pool_sequence(attention.compressor.state_rows(x, positions), entry_rope)
    entries = entries.to(q.dtype)
    visible = visible_entries(positions, entries.shape[1], attention.ratio)
    chosen, trace = visible, None
    if attention.indexer is not None:
        scores = _indexer_scores(attention, x.detach(), latent.detach(), ropes)
        chosen = topk_mask(scores.detach(), attention.indexer.topk, visible)
        if select_all is not None:
            chosen = visible & (chosen | select_all)
        if with_trace:
            mass = _visible_mass(attention, q.detach(), keys.detach(), entries.detach(), visible, window)
            trace = IndexerTrace(scores=scores.masked_fill(~visible, float("-inf")), mass=mass, visible=visible)
    out = window_attend(attention, q, keys, window, entries, chosen)
    return attention.output(out, rope), trace


def visible_entries(positions: torch.Tensor, num_entries: int, ratio: int) -> torch.Tensor:
    """Bool [..., N]: whether the query at ``positions`` [...] may use a compressed row (its last token is past)."""
    index = torch.arange(num_entries, device=positions.device)
    return index < (positions.unsqueeze(-1) + 1) // ratio


def window_attend(
    attention: Attention,
    q: torch.Tensor,
    keys: torch.Tensor,
    window: int,
    entries: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
    *,
    skip: int = 0,
    own_keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention outputs [B, L, H, d] over the causal window united with chosen compressed rows.

    q         [B, L, H, d]
    keys      [B, L, d]
    window    keys that a query sees, itself included
    entries   [B, N, d] compressed rows
    chosen    bool [L, N] or [B, L, N] rows that each query attends to
    skip      newest keys of the window that are hidden from a query (``own_keys`` stand in their place)
    own_keys  [B, L, M, d] keys visible to one query each
    """
    blocks = _Blocks.of(q.shape[1], window)
    shared, valid = blocks.keys(keys), blocks.window_valid(skip, q.device)
    if entries is not None:
        shared = torch.cat((shared, blocks.shared(entries)), dim=-2)
        picked = blocks.queries(chosen.unsqueeze(0) if chosen.dim() == 2 else chosen, axis=1)
        valid = torch.cat((valid.expand(*picked.shape[:-1], -1), picked), dim=-1)
    private = None if own_keys is None else blocks.queries(own_keys, axis=1)
    out = attention.attend(blocks.queries(q, axis=1), shared, valid, private)
    return out.flatten(1, 2)[:, : q.shape[1]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Blocks:
    """How a sequence of ``length`` is cut into ``num`` blocks of ``size`` queries (the last one padded).

    A block's queries see keys of their own block and, with several blocks, of the one before.
    """

    length: int
    window: int
    size: int
    num: int

    @classmethod
    def of(cls, length: int, window: int) -> "_Blocks":
        if length <= 2 * window:
            return cls(length=length, window=window, size=length, num=1)
        return cls(length=length, window=window, size=window, num=-(-length // window))

    def queries(self, x: torch.Tensor, *, axis: int) -> torch.Tensor:
        """[B, L, ...] -> [B, num, size, ...], padded with zeros."""
        missing = self.num * self.size - self.length
        if missing:
            x = torch.cat((x, x.new_zeros(*x.shape[:axis], missing, *x.shape[axis + 1 :])), dim=axis)
        return x.unflatten(axis, (self.num, self.size))

    def keys(self, keys: torch.Tensor) -> torch.Tensor:
        """[B, L, d] -> [B, num, own or previous-and-own, d]."""
        own = self.queries(keys, axis=1)
        if self.num == 1:
            return own
        before = torch.cat((torch.zeros_like(own[:, :1]), own[:, :-1]), dim=1)
        return torch.cat((before, own), dim=2)

    def shared(self, entries: torch.Tensor) -> torch.Tensor:
        """[B, N, d] -> [B, num, N, d]: every block sees the same compressed rows."""
        return entries.unsqueeze(1).expand(-1, self.num, -1, -1)

    def window_valid(self, skip: int, device: torch.device) -> torch.Tensor:
        """Bool [1, num, size, keys of a block]: within the window, but for its ``skip`` newest keys."""
        block = torch.arange(self.num, device=device).view(-1, 1, 1) * self.size
        query = block + torch.arange(self.size, device=device).view(1, -1, 1)
        before = 0 if self.num == 1 else self.size
        key = block - before + torch.arange(before + self.size, device=device).view(1, 1, -1)
        return ((key >= 0) & (key <= query - skip) & (key > query - self.window)).unsqueeze(0)


def _indexer_scores(attention: Attention, x: torch.Tensor, latent: torch.Tensor, ropes: SequenceRopes) -> torch.Tensor:
    """Indexer scores [B, L, N] of every query for every complete block."""
    indexer = attention.indexer
    positions = torch.arange(x.shape[1], device=x.device)
    rows = indexer.compressor.state_rows(x, positions)
    keys = indexer.compressor.pool_sequence(rows, ropes.entries[attention.ratio])
    return indexer.scores(indexer.query(latent, ropes.compress), indexer.weights(x), keys)


@torch.no_grad()
def _visible_mass(
    attention: Attention,
    q: torch.Tensor,
    keys: torch.Tensor,
    entries: torch.Tensor,
    visible: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Attention weight [B, L, N] that queries would give each visible row if nothing were selected away."""
    blocks = _Blocks.of(q.shape[1], window)
    shared = torch.cat((blocks.keys(keys), blocks.shared(entries)), dim=-2)
    seen = blocks.queries(visible.unsqueeze(0), axis=1)
    valid = torch.cat((blocks.window_valid(0, q.device), seen), dim=-1)
    scores = attention_scores(blocks.queries(q, axis=1), shared, attention.scale)
    weights = sink_softmax(scores.masked_fill(~valid.unsqueeze(-2), float("-inf")), attention.attn_sink)
    return weights[..., -entries.shape[1] :].sum(-2).flatten(1, 2)[:, : q.shape[1]]
