"""FewRowsAttention: a layer's attention for a few float32 tokens on the CPU, in fused products.

All products of the layer's input are one, those of the query latent are another; norm weights are folded into the
products that follow them. Same mathematics as ``PagedPass.attention``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.paged import PagedPass
from backends.deepseek_v4.rope import Rope


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """Rotations of a pass for whole heads, complex64 [T, 1, d / 2]; 1 where a pair is not rotated.

    heads    the attention's heads
    back     their inverse
    index    the indexer's heads; None without an indexer
    phases   by kind: position modulo the ratio, int64 [T]
    """

    heads: torch.Tensor
    back: torch.Tensor
    index: torch.Tensor | None
    phases: Mapping[AttentionKind, torch.Tensor]


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

    def __init__(self, attention: Attention, input_weight: torch.Tensor, norm: RowNorm) -> None:
        """``input_weight`` [D] is the weight of the norm before the layer, folded into the input's products."""
        self._norm, self._num_heads, self._dim = norm, attention.num_heads, attention.head_dim
        self._compressor, self._indexer, self._scale = attention.compressor, attention.indexer, attention.scale
        self._sinks = attention.attn_sink.detach().float()
        self._key_weight = torch.ones(self._num_heads + 1, self._dim)
        self._key_weight[-1] = attention.kv_norm.weight.detach()
        inputs, latents = [attention.wq_a.weight, attention.wkv.weight], [attention.wq_b.weight]
        if attention.compressor is not None:
            inputs += [attention.compressor.wkv.weight, attention.compressor.wgate.weight]
            self._ape = _state_bias(attention.compressor)
        if attention.indexer is not None:
            inner = attention.indexer.compressor
            inputs += [inner.wkv.weight, inner.wgate.weight, attention.indexer.weights_proj.weight]
            latents.append(attention.indexer.wq_b.weight)
            self._index_ape = _state_bias(inner)
        self._input_t, self._input_sizes = _fused(inputs, input_weight), _sizes(attention)
        self._latent_t = _fused(latents, attention.q_norm.weight)
        groups = attention.num_groups
        self._low_t = attention.wo_a.weight.detach().unflatten(0, (groups, -1)).transpose(1, 2).contiguous()
        self._out_t = attention.wo_b.weight.detach().t().contiguous()

    def __call__(self, layer: int, x_TD: torch.Tensor, paged: PagedPass, turns: Turns) -> torch.Tensor:
        """Output [T, D] of ``x_TD``, normalised without a weight; writes the caches of pool layer ``layer``."""
        heads, num_tokens = self._num_heads, x_TD.shape[0]
        latent_TL, key_TD, *states = torch.mm(x_TD, self._input_t).split_with_sizes(self._input_sizes, 1)
        queries = torch.mm(self._norm(latent_TL), self._latent_t)
        q_width = heads * self._dim
        joined = torch.cat([queries if self._indexer is None else queries[:, :q_width], key_TD], dim=1)
        rows_THD = self._norm(joined.view(num_tokens, heads + 1, self._dim)).mul_(self._key_weight)
        turn(rows_THD, turns.heads)
        paged.store_keys(layer, rows_THD.select(1, heads))
        selections: tuple[torch.Tensor | None, ...] = ()
        if self._compressor is not None:
            phases_T = turns.phases[paged.pool.kind(layer)]
            paged.store_states(layer, self._compressor, states[0].add_(self._ape.index_select(0, phases_T)))
        if self._indexer is not None:
            paged.store_index_states(layer, self._indexer, states[1].add_(self._index_ape.index_select(0, phases_T)))
            if paged.selects:
                indexer = self._indexer
                q_TJD = queries[:, q_width:].reshape(num_tokens, indexer.num_heads, indexer.head_dim)
                weights_TJ = states[2].mul_(indexer.scale)
                selections = paged.select(layer, indexer, turn(q_TJD, turns.index), weights_TJ)
        q_THD = rows_THD[:, :heads].contiguous()
        o_THD = turn(paged.attend(layer, q_THD, self._sinks, self._scale, selections), turns.back)
        grouped_GTI = o_THD.view(num_tokens, self._low_t.shape[0], -1).transpose(0, 1)
        low_TR = torch.bmm(grouped_GTI, self._low_t).transpose(0, 1).reshape(num_tokens, -1)
        return torch.mm(low_TR, self._out_t)


def _fused(weights: list[torch.Tensor], column_weight: torch.Tensor) -> torch.Tensor:
    """One transposed matrix [in, sum of outs] of several [out, in], each column scaled."""
    return (torch.cat([w.detach().float() for w in weights]) * column_weight.detach().float()).t().contiguous()


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
