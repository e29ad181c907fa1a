"""FewRowsAttention: a layer's attention for a few float32 tokens on the CPU, in fused products.

All products of the layer's input are one, and queries and key are normalised and rotated together. Same mathematics
as ``PagedPass.attention``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.few_rows.compression import FewRowsCompressor
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.few_rows.products import product_of
from backends.deepseek_v4.few_rows.selection import index_scores, select_first
from backends.deepseek_v4.paged import PagedPass
from backends.deepseek_v4.rope import Rope

# (pool layer, scaled queries [T, H, d], sinks [H], selections by segment) -> attention results [T, H, d].
Attend = Callable[[int, torch.Tensor, torch.Tensor, tuple[torch.Tensor | None, ...]], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class PassView:
    """A pass as the layers of one kind of rope see it. Rotations are complex64 [T, 1, d / 2], 1 where nothing view.

    heads    rotation of the attention's heads
    back     its inverse
    index    rotation of the indexer's heads; None without an indexer
    phases   by kind: position modulo the ratio, int64 [T]
    counts   visible rows of every query that selects some, by segment; None where a segment attends all
    attend   attention over caches that are already written
    """

    heads: torch.Tensor
    back: torch.Tensor
    index: torch.Tensor | None
    phases: Mapping[AttentionKind, torch.Tensor]
    counts: tuple[list[int] | None, ...]
    attend: Attend


def whole_turns(rope: Rope, dim: int) -> torch.Tensor:
    """Rotation of all ``dim / 2`` pairs of a head, of which the last ones turn."""
    turning = torch.complex(rope.cos, rope.sin)
    still = turning.new_ones(*turning.shape[:-1], dim // 2 - turning.shape[-1])
    return torch.cat((still, turning), dim=-1).unsqueeze(1)


def turn(x_THD: torch.Tensor, turns_T1P: torch.Tensor) -> torch.Tensor:
    """Rotate contiguous ``x_THD`` in place."""
    x_THD.view(torch.complex64).mul_(turns_T1P)
    return x_THD


class FewRowsAttention:
    """Fused copies of one layer's attention weights; made once, never trained."""

    def __init__(self, attention: Attention, *, constant_shapes: bool) -> None:
        """``constant_shapes``: rows may not depend on each other; weights stay float32, windows are pooled alike."""
        half, pooling = not constant_shapes, _plain if constant_shapes else FewRowsCompressor
        self._num_heads, self._dim = attention.num_heads, attention.head_dim
        self._compressor, self._indexer = None, attention.indexer
        self._sinks = attention.attn_sink.detach().float()
        inputs = [attention.wq_a.weight, attention.wkv.weight]
        if attention.compressor is not None:
            inputs += [attention.compressor.wkv.weight, attention.compressor.wgate.weight]
            self._compressor = pooling(attention.compressor)
            self._ape = _state_bias(attention.compressor)
        if attention.indexer is not None:
            inner = attention.indexer.compressor
            inputs += [inner.wkv.weight, inner.wgate.weight, attention.indexer.weights_proj.weight]
            self._index_compressor = pooling(inner)
            self._index_ape = _state_bias(inner)
            self._index_queries = product_of([attention.indexer.wq_b.weight], half=half)
        self._inputs, self._input_sizes = product_of(inputs, half=half), _sizes(attention)
        self._queries = product_of([attention.wq_b.weight], half=half)
        self._latent_norm = RowNorm(attention.q_norm.weight, attention.eps)
        self._head_norm = RowNorm(_head_weights(attention), attention.eps)
        groups = attention.wo_a.weight.unflatten(0, (attention.num_groups, -1))
        self._lows = tuple(product_of([group], half=half) for group in groups)
        self._out = product_of([attention.wo_b.weight], half=half)

    def __call__(self, layer: int, x_TD: torch.Tensor, paged: PagedPass, view: PassView) -> torch.Tensor:
        """Output [T, D] of normalised ``x_TD``; writes the caches of pool layer ``layer``."""
        heads, num_tokens = self._num_heads, x_TD.shape[0]
        latent_TL, key_TD, *states = self._inputs(x_TD).split_with_sizes(self._input_sizes, 1)
        latent_TL = self._latent_norm(latent_TL)
        joined = torch.cat([self._queries(latent_TL), key_TD], dim=1)
        rows_THD = turn(self._head_norm(joined.view(num_tokens, heads + 1, self._dim)), view.heads)
        paged.store_keys(layer, rows_THD.select(1, heads))
        if self._compressor is not None:
            phases_T = view.phases[paged.pool.kind(layer)]
            paged.store_states(layer, self._compressor, states[0].add_(self._ape.index_select(0, phases_T)))
        selections: tuple[torch.Tensor | None, ...] = ()
        if self._indexer is not None:
            states_TD = states[1].add_(self._index_ape.index_select(0, phases_T))
            paged.store_index_states(layer, self._index_compressor, states_TD)
            if paged.selects:
                selections = self._select(layer, latent_TL, states[2], paged, view)
        q_THD = rows_THD[:, :heads].contiguous()
        o_THD = turn(view.attend(layer, q_THD, self._sinks, selections), view.back)
        grouped = o_THD.view(num_tokens, len(self._lows), -1).unbind(1)
        return self._out(torch.cat([low(part) for low, part in zip(self._lows, grouped, strict=True)], dim=1))

    def _select(
        self, layer: int, latent_TL: torch.Tensor, weights_TJ: torch.Tensor, paged: PagedPass, view: PassView
    ) -> tuple[torch.Tensor | None, ...]:
        """The compressed rows that the indexer selects; see ``PagedPass.select``."""
        num_heads, dim = self._indexer.num_heads, self._indexer.head_dim
        rows, keys = paged.pool.index_rows(layer), paged.pool.index_keys(layer)
        q_TJD = rows.prepare_query(turn(self._index_queries(latent_TL).view(-1, num_heads, dim), view.index))
        weights_TJ.mul_(self._indexer.scale)
        selections = []
        for segment, counts in zip(paged.plan.segments, view.counts, strict=True):
            if counts is None:
                selections.append(None)
                continue
            seen, groups = segment.compressed[AttentionKind.CSA], segment.num_groups
            scores_GMC = index_scores(
                q_TJD[segment.first : segment.last].view(groups, -1, num_heads, dim),
                weights_TJ[segment.first : segment.last].unflatten(0, (groups, -1)),
                rows.take(keys, seen.slots_GC),
            )
            selections.append(select_first(scores_GMC, seen.select_k, counts))
        return tuple(selections)


def _plain(compressor: Compressor) -> Compressor:
    return compressor


def _head_weights(attention: Attention) -> torch.Tensor:
    """Norm weights [H + 1, d] of the query heads, which have none but the scale of the scores, and of the key."""
    weights = torch.full((attention.num_heads + 1, attention.head_dim), attention.scale)
    weights[-1] = attention.kv_norm.weight.detach()
    return weights


def _sizes(attention: Attention) -> list[int]:
    """Widths of the fused input product: latent, key, then state, indexer state, indexer weights."""
    sizes = [attention.wq_a.out_features, attention.head_dim]
    if attention.compressor is not None:
        sizes.append(attention.compressor.state_width)
    if attention.indexer is not None:
        sizes += [attention.indexer.compressor.state_width, attention.indexer.num_heads]
    return sizes


def _state_bias(compressor: Compressor) -> torch.Tensor:
    """What position p adds to its state row: nothing to the values, ``ape[p % ratio]`` to the scores."""
    ape = compressor.ape.detach().float()
    return torch.cat([torch.zeros_like(ape), ape], dim=1)
