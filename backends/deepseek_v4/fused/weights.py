"""Weights of a stack of layers as the fused pass reads them: matrices with one input are one matrix.

Nothing is stored twice: the model's own parameters become views of the joined matrices. A weight that is kept in
float32 for safety but holds bf16 values (compressor projections of a published checkpoint) is stored as bf16 under
bf16 activations, which changes no product: products of bf16 values are exact in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.block import Block
from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.hyper_connections import HyperWeights
from backends.deepseek_v4.moe import MixtureOfExperts
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.finish_inputs.values import CompressorInputs, LayerInputs
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from backends.deepseek_v4.weights.storage import quantize_fp4, quantize_fp8_blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormats:
    """Storage of the projections and of the routed experts; everything else stays as it is.

    Quantising weights that came from such a storage gives back the same values.
    """

    linears: WeightFormat = WeightFormat.PLAIN
    experts: WeightFormat = WeightFormat.PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class MixWeights:
    """Hyper-connections of one sub-block and the norm of its input, float32."""

    fn_MX: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm_D: torch.Tensor

    @classmethod
    def of(cls, weights: HyperWeights, norm: nn.Module) -> "MixWeights":
        return cls(
            fn_MX=weights.fn.detach().float(),
            base=weights.base.detach().float(),
            scale=weights.scale.detach().float(),
            norm_D=norm.weight.detach().float(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One layer.

    inputs         what multiplies the layer's normalised input, in the column order of ``finish_inputs``
    queries        what multiplies the query latent: attention queries, then the indexer's
    layer_inputs   widths and norms of the input columns
    entry_norms    norm of compressed rows and, for CSA, of indexer keys
    router         gate; ``router_bias_E`` for learned selection, ``router_table_Vk`` for hash layers
    """

    kind: AttentionKind
    attn_mix: MixWeights
    ffn_mix: MixWeights
    inputs: tuple[StoredWeight, ...]
    queries: tuple[StoredWeight, ...]
    layer_inputs: LayerInputs
    entry_norms: tuple[torch.Tensor, ...]
    out_a: StoredWeight
    out_b: StoredWeight
    sinks_H: torch.Tensor
    router: StoredWeight
    router_bias_E: torch.Tensor | None
    router_table_Vk: torch.Tensor | None
    routed: ExpertWeights
    shared: ExpertWeights

    def num_bytes(self, chosen: float = 1.0) -> int:
        """Bytes of all matrices; ``chosen`` is the share of the routed experts that is read."""
        always = [*self.inputs, *self.queries, self.out_a, self.out_b, self.router, *_matrices(self.shared)]
        mixes = self.attn_mix.fn_MX.nbytes + self.ffn_mix.fn_MX.nbytes
        routed = sum(weight.nbytes for weight in _matrices(self.routed))
        return sum(weight.nbytes for weight in always) + mixes + round(chosen * routed)


def layer_weights(block: Block, dtype: torch.dtype, formats: WeightFormats) -> LayerWeights:
    """The weights of ``block`` for activations of ``dtype``; its parameters become views where they are joined."""
    attention, ffn = block.attn, block.ffn
    latent = [attention.wq_a, attention.wkv]
    compressing = _compressing_linears(attention)
    queries = [attention.wq_b] if attention.indexer is None else [attention.wq_b, attention.indexer.wq_b]
    bias, table = (None, ffn.gate.tid2eid) if ffn.gate.is_hash else (ffn.gate.bias.detach().float(), None)
    return LayerWeights(
        kind=AttentionKind.of(attention.ratio),
        attn_mix=MixWeights.of(block.hc_attn, block.attn_norm),
        ffn_mix=MixWeights.of(block.hc_ffn, block.ffn_norm),
        inputs=_input_weights(latent, compressing, dtype, formats.linears),
        queries=(join(queries, dtype, formats.linears),),
        layer_inputs=_layer_inputs(attention),
        entry_norms=tuple(each.norm.weight.detach().float() for each in _compressors(attention)),
        out_a=join([attention.wo_a], dtype, formats.linears),
        out_b=join([attention.wo_b], dtype, formats.linears),
        sinks_H=attention.attn_sink.detach().float(),
        router=join([ffn.gate], dtype),
        router_bias_E=bias,
        router_table_Vk=table,
        routed=_routed(ffn, dtype, formats.experts),
        shared=_shared(ffn, dtype, formats.linears),
    )


def join(linears: Sequence[nn.Module], dtype: torch.dtype, form: WeightFormat = WeightFormat.PLAIN) -> StoredWeight:
    """One stored matrix of all rows of ``linears``; plain matrices replace the linears' own parameters."""
    weights = [linear.weight.detach() for linear in linears]
    if form is not WeightFormat.PLAIN:
        return store(torch.cat(weights), form, dtype)
    kept = common_dtype(weights, dtype)
    if len(weights) == 1 and weights[0].dtype == kept:
        return StoredWeight(values=weights[0])
    joined = torch.cat([weight.to(kept) for weight in weights])
    start = 0
    for linear in linears:
        rows = linear.weight.shape[0]
        linear.weight.data = joined[start : start + rows]
        start += rows
    return StoredWeight(values=joined)


def common_dtype(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.dtype:
    """``dtype`` if it holds every value of ``weights`` exactly, else float32."""
    exact = all(weight.dtype == dtype or torch.equal(weight.to(dtype).to(weight.dtype), weight) for weight in weights)
    return dtype if exact else torch.float32


def store(weight: torch.Tensor, form: WeightFormat, dtype: torch.dtype) -> StoredWeight:
    """A matrix [O, I], or a stack of them [E, O, I], in a storage format, packed for activations of bf16 ``dtype``."""
    if form is WeightFormat.PLAIN:
        return StoredWeight(values=weight)
    if form is WeightFormat.FP4:
        values, scales = quantize_fp4(weight)
    elif weight.dim() == 2:
        values, scales = quantize_fp8_blocks(weight)
    else:
        parts = [quantize_fp8_blocks(each) for each in weight]
        values, scales = torch.stack([v for v, _ in parts]), torch.stack([s for _, s in parts])
    stored = StoredWeight(values=values, scales=scales, format=form)
    return stored.pack() if dtype == torch.bfloat16 else stored


def _input_weights(
    latent: list[nn.Linear], compressing: list[nn.Linear], dtype: torch.dtype, form: WeightFormat
) -> tuple[StoredWeight, ...]:
    """The input projections; published checkpoints keep those of the compressors unquantised."""
    if form is WeightFormat.PLAIN:
        return (join([*latent, *compressing], dtype),)
    quantised = join(latent, dtype, form)
    return (quantised, join(compressing, dtype)) if compressing else (quantised,)


def _compressors(attention: Attention) -> list[Compressor]:
    if attention.compressor is None:
        return []
    if attention.indexer is None:
        return [attention.compressor]
    return [attention.compressor, attention.indexer.compressor]


def _compressing_linears(attention: Attention) -> list[nn.Linear]:
    linears = [linear for each in _compressors(attention) for linear in (each.wkv, each.wgate)]
    return linears if attention.indexer is None else [*linears, attention.indexer.weights_proj]


def _layer_inputs(attention: Attention) -> LayerInputs:
    indexer = attention.indexer
    return LayerInputs(
        q_lora=attention.wq_a.out_features,
        head_dim=attention.head_dim,
        q_norm=attention.q_norm.weight.detach().float(),
        kv_norm=attention.kv_norm.weight.detach().float(),
        eps=attention.eps,
        compressor=None if attention.compressor is None else _compressor_inputs(attention.compressor),
        index=None if indexer is None else _compressor_inputs(indexer.compressor),
        index_heads=0 if indexer is None else indexer.num_heads,
        index_scale=0.0 if indexer is None else indexer.scale,
    )


def _compressor_inputs(compressor: Compressor) -> CompressorInputs:
    return CompressorInputs(
        ratio=compressor.ratio, channels=compressor.channels, ape=compressor.ape.detach().float().contiguous()
    )


def _routed(ffn: MixtureOfExperts, dtype: torch.dtype, form: WeightFormat) -> ExpertWeights:
    w1, w2, w3 = (store(each.detach(), form, dtype) for each in (ffn.experts.w1, ffn.experts.w2, ffn.experts.w3))
    return ExpertWeights(w1=w1, w2=w2, w3=w3)


def _shared(ffn: MixtureOfExperts, dtype: torch.dtype, form: WeightFormat) -> ExpertWeights:
    shared = ffn.shared_experts
    return ExpertWeights(
        w1=join([shared.w1], dtype, form), w3=join([shared.w3], dtype, form), w2=join([shared.w2], dtype, form)
    )


def _matrices(experts: ExpertWeights) -> tuple[StoredWeight, StoredWeight, StoredWeight]:
    return experts.w1, experts.w3, experts.w2
