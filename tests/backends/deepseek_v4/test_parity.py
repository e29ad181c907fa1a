"""The dense forward against transformers' DeepseekV4ForCausalLM: same random weights, same logits."""

import re

import pytest
import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.dense import dense_forward
from backends.deepseek_v4.model import DeepseekV4Model

transformers = pytest.importorskip("transformers")

_LAYER_NAMES = (
    ("self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"),
    ("self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"),
    ("self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"),
    ("self_attn.compressor.indexer.kv_proj", "attn.indexer.compressor.wkv"),
    ("self_attn.compressor.indexer.gate_proj", "attn.indexer.compressor.wgate"),
    ("self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"),
    ("self_attn.compressor.kv_norm", "attn.compressor.norm"),
    ("self_attn.compressor.kv_proj", "attn.compressor.wkv"),
    ("self_attn.compressor.gate_proj", "attn.compressor.wgate"),
    ("self_attn.compressor.position_bias", "attn.compressor.ape"),
    ("self_attn.q_a_proj", "attn.wq_a"),
    ("self_attn.q_a_norm", "attn.q_norm"),
    ("self_attn.q_b_proj", "attn.wq_b"),
    ("self_attn.kv_proj", "attn.wkv"),
    ("self_attn.kv_norm", "attn.kv_norm"),
    ("self_attn.o_a_proj", "attn.wo_a"),
    ("self_attn.o_b_proj", "attn.wo_b"),
    ("self_attn.sinks", "attn.attn_sink"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("attn_hc.", "hc_attn_"),
    ("ffn_hc.", "hc_ffn_"),
    ("mlp.gate.e_score_correction_bias", "ffn.gate.bias"),
    ("mlp.gate", "ffn.gate"),
    ("mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"),
    ("mlp.shared_experts.up_proj", "ffn.shared_experts.w3"),
    ("mlp.shared_experts.down_proj", "ffn.shared_experts.w2"),
    ("mlp.experts.down_proj", "ffn.experts.w2"),
)
_TOP_NAMES = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}


def official_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of the transformers module under official names, experts stacked."""
    out = {}
    for name, tensor in state.items():
        if name in _TOP_NAMES:
            out[_TOP_NAMES[name]] = tensor
            continue
        layer, rest = re.fullmatch(r"model\.(layers\.\d+\.)(.+)", name).groups()
        if rest == "mlp.experts.gate_up_proj":
            out[layer + "ffn.experts.w1"], out[layer + "ffn.experts.w3"] = tensor.chunk(2, dim=1)
            continue
        theirs, ours = next(pair for pair in _LAYER_NAMES if rest.startswith(pair[0]))
        out[layer + ours + rest.removeprefix(theirs)] = tensor
    return out


def pair(raw: dict[str, object], randomise) -> tuple[torch.nn.Module, DeepseekV4Model, DeepseekV4Config]:
    """The transformers model of an official configuration and ours with the same weights."""
    config = transformers.DeepseekV4Config(**raw, experts_implementation="eager", attn_implementation="eager")
    theirs = transformers.DeepseekV4ForCausalLM(config).eval()
    randomise(theirs)
    ours = DeepseekV4Model(DeepseekV4Config.from_dict(raw))
    ours.load_state_dict(official_weights(theirs.state_dict()), strict=True)
    return theirs, ours, ours.config


CASES = {
    "all kinds": ({}, 300),
    "window beyond the prompt": ({"sliding_window": 128}, 90),
    "window cut into blocks": ({"sliding_window": 16}, 75),
    "prompt shorter than a block": ({}, 3),
    "one token": ({}, 1),
    "window only": ({"compress_ratios": [0] * 7}, 70),
    "first layers compress": ({"compress_ratios": [128, 128, 4, 128, 4, 4, 0]}, 260),
    "everything selected": ({"index_topk": 512}, 150),
    "many index heads, few rows": ({"index_n_heads": 32, "index_topk": 4}, 140),
    "no hash layers, one group": ({"num_hash_layers": 0, "o_groups": 1}, 40),
    "plain rope": ({"rope_scaling": None}, 140),
    "whole head rotated": ({"qk_rope_head_dim": 16, "head_dim": 16}, 40),
    "two streams, few rounds": ({"hc_mult": 2, "hc_sinkhorn_iters": 3}, 40),
}


@pytest.mark.parametrize("case", CASES)
def test_dense_logits_equal_transformers(case, tiny_json, randomise):
    changes, length = CASES[case]
    theirs, ours, config = pair({**tiny_json, **changes}, randomise)
    tokens = torch.randint(0, config.vocab_size, (2, length))
    with torch.no_grad():
        expected = theirs(input_ids=tokens, use_cache=False).logits
        logits = ours.logits(dense_forward(ours, tokens).streams)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
