"""A target as transformers' ``DeepseekV4ForCausalLM`` with the same weights, in memory: the speed to compare with."""

import re
from collections.abc import Mapping

import torch

# Names within a layer: ours -> theirs; the first that a name starts with applies.
_LAYER_NAMES = (
    ("attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
    ("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj"),
    ("attn.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm"),
    ("attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj"),
    ("attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj"),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"),
    ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.wq_a", "self_attn.q_a_proj"),
    ("attn.q_norm", "self_attn.q_a_norm"),
    ("attn.wq_b", "self_attn.q_b_proj"),
    ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"),
    ("attn.wo_a", "self_attn.o_a_proj"),
    ("attn.wo_b", "self_attn.o_b_proj"),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("hc_attn_", "attn_hc."),
    ("hc_ffn_", "ffn_hc."),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.gate", "mlp.gate"),
    ("ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"),
    ("ffn.shared_experts.w3", "mlp.shared_experts.up_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"),
    ("ffn.experts.w2", "mlp.experts.down_proj"),
)
_TOP_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}
_OURS_ONLY = ("quantization_config", "expert_dtype", "architectures")


def as_transformers(
    raw: Mapping[str, object],
    parameters: Mapping[str, torch.Tensor],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> torch.nn.Module:
    """The model of the official configuration ``raw`` with our target's state under its official names."""
    import transformers

    transformers.logging.set_verbosity_error()
    settings = {key: value for key, value in raw.items() if key not in _OURS_ONLY}
    with torch.device(device):
        model = transformers.DeepseekV4ForCausalLM(transformers.DeepseekV4Config(**settings, dtype=dtype)).eval()
    model = model.to(dtype)
    model.load_state_dict(renamed(parameters), strict=True)
    return model


def renamed(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under transformers' names, gate and up projection of the experts joined."""
    out = {}
    for name, tensor in parameters.items():
        layer, rest = re.fullmatch(r"(?:(layers\.\d+\.))?(.+)", name).groups()
        if layer is None:
            out[_TOP_NAMES[name]] = tensor
        elif rest == "ffn.experts.w1":
            up = parameters[f"{layer}ffn.experts.w3"]
            out[f"model.{layer}mlp.experts.gate_up_proj"] = torch.cat((tensor, up), dim=1)
        elif rest != "ffn.experts.w3":
            ours, theirs = next(pair for pair in _LAYER_NAMES if rest.startswith(pair[0]))
            out[f"model.{layer}{theirs}{rest.removeprefix(ours)}"] = tensor
    return out
