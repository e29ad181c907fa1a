"""LeanLlama: the cached forward of transformers' Llama in few large operations, over the same weights.

Query, key and value projections are one product, gate and up projections another, and grouped heads attend without
repeating keys. A small model in float32 on a CPU keeps a packed copy of its weights (``packed_linear``). Loading
compares it with the model that it stands for (see ``backends.hf.trial``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedModel

from backends.hf.cache import RowCache
from backends.hf.packed_linear import Product, worth_packing
from backends.hf.placement import Placement

DEFAULT_ROPE = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeanLayer:
    """Weights of a layer: rows of query, key and value heads one below the other, and gate above up."""

    attention_norm: torch.Tensor
    query_key_value: Product
    output: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What the attention of every layer of one call shares.

    cos, sin  [B, Q, 1, head width]
    mask      [B, 1, group * Q, W], added to scores
    shape     B, Q
    """

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    cache: RowCache
    shape: torch.Size


def is_lean(model: PreTrainedModel) -> bool:
    """Whether ``LeanLlama`` computes what this model computes."""
    if type(model) is not LlamaForCausalLM:
        return False
    config = model.config
    plain_rope = (config.rope_parameters or {}).get("rope_type") == DEFAULT_ROPE
    return plain_rope and config.hidden_act == "silu" and not config.attention_bias and not config.mlp_bias


class LeanLlama:
    """Holds weights that the model shares: fusing replaces the memory of the parts by views of the whole."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        config = model.config
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim: int = config.head_dim
        self._eps: float = config.rms_norm_eps
        self._embedding = model.model.embed_tokens.weight.data
        self._final_norm = model.model.norm.weight.data
        pack = worth_packing([model.lm_head.weight, *_layer_weights(model)])
        self._head = Product(model.lm_head.weight.data, pack=pack)
        self._inv_freq = model.model.rotary_emb.inv_freq.float()
        self._layers = tuple(
            LeanLayer(
                attention_norm=layer.input_layernorm.weight.data,
                query_key_value=Product(
                    _fused([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]), pack=pack
                ),
                output=Product(layer.self_attn.o_proj.weight.data, pack=pack),
                mlp_norm=layer.post_attention_layernorm.weight.data,
                gate_up=Product(_fused([layer.mlp.gate_proj, layer.mlp.up_proj]), pack=pack),
                down=Product(layer.mlp.down_proj.weight.data, pack=pack),
            )
            for layer in model.model.layers
        )

    def __call__(
        self, placement: Placement, cache: RowCache, *, columns: Sequence[int], wanted_states: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits of ``columns`` [B, C, V], and the wanted entries of what transformers calls hidden states [B, Q, D].

        Entry 0 is the embedding, entry i the output of layer i, the last one (or -1) that of the final norm.
        """
        shape = placement.ids_BQ.shape
        num_states = len(self._layers) + 1
        wanted = {entry % num_states for entry in wanted_states}
        hidden_RD = F.embedding(placement.ids_BQ.reshape(-1), self._embedding)
        states = {0: hidden_RD.view(*shape, -1)} if 0 in wanted else {}
        cos, sin = self._angles(placement.positions_BQ, hidden_RD.dtype)
        group = self._num_heads // self._num_kv_heads
        mask = placement.mask_B1QW.repeat(1, 1, group, 1)
        call = _Call(cos=cos, sin=sin, mask=mask, cache=cache, shape=shape)
        for number, layer in enumerate(self._layers, start=1):
            hidden_RD = hidden_RD + self._attention(layer, number - 1, hidden_RD, call)
            hidden_RD = hidden_RD + self._mlp(layer, hidden_RD)
            if number in wanted:
                states[number] = hidden_RD.view(*shape, -1)
        hidden_BQD = self._norm(hidden_RD, self._final_norm).view(*shape, -1)
        states[num_states - 1] = hidden_BQD
        rows_RD = hidden_BQD[:, list(columns)].reshape(-1, hidden_BQD.shape[-1])
        logits_BCV = self._head(rows_RD).reshape(shape[0], len(columns), -1)
        return logits_BCV, [states[entry % num_states] for entry in wanted_states]

    def _attention(self, layer: LeanLayer, index: int, hidden_RD: torch.Tensor, call: _Call) -> torch.Tensor:
        num_reqs, width = call.shape
        heads, kv_heads, head_dim = self._num_heads, self._num_kv_heads, self._head_dim
        product = layer.query_key_value(self._norm(hidden_RD, layer.attention_norm))
        mixed = product.reshape(num_reqs, width, heads + 2 * kv_heads, head_dim)
        turned, value = mixed.split([heads + kv_heads, kv_heads], dim=2)
        first, second = turned.chunk(2, dim=-1)
        turned = turned * call.cos + torch.cat([-second, first], dim=-1) * call.sin
        query, key = turned.split([heads, kv_heads], dim=2)
        keys, values = call.cache.update(key.transpose(1, 2), value.transpose(1, 2), index)
        # Heads that share keys stand below each other as further queries.
        group = heads // kv_heads
        folded = query.view(num_reqs, width, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(num_reqs, kv_heads, group * width, head_dim)
        found = F.scaled_dot_product_attention(folded, keys, values, attn_mask=call.mask)
        found = found.view(num_reqs, kv_heads, group, width, head_dim).permute(0, 3, 1, 2, 4)
        return layer.output(found.reshape(num_reqs * width, heads * head_dim))

    def _mlp(self, layer: LeanLayer, hidden_RD: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._norm(hidden_RD, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate) * up)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self._eps)

    def _angles(self, positions_BQ: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [B, Q, 1, head width], in float32 until the end."""
        half = positions_BQ[..., None].float() * self._inv_freq
        angles = torch.cat([half, half], dim=-1)[:, :, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _layer_weights(model: LlamaForCausalLM) -> list[torch.Tensor]:
    return [parameter.data for parameter in model.model.layers.parameters() if parameter.dim() == 2]


def _fused(linears: Sequence[torch.nn.Module]) -> torch.Tensor:
    """Weights one below the other; afterwards the linears' own weights are views of them."""
    whole = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, whole.split([len(linear.weight) for linear in linears]), strict=True):
        linear.weight.data = part
    return whole
