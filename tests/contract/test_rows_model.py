"""Rows 64, 66-72, 80-87, 89, 90, 92 and 94 of the seed suite: model configuration and mathematics."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.config import DeepseekV4Config, YarnScaling
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.hyper_connections import HyperWeights, MixedIn, collapse, mix_in, mix_out
from backends.deepseek_v4.moe import MixtureOfExperts, Router, choose_experts, router_scores, routing_weights
from backends.nextn.model import NextNModel
from backends.vendor import flash_mla
from specdec.errors import UnsupportedError

FLASH_LAYERS = 43


def flash(**changes: object) -> DeepseekV4Config:
    """V4-Flash as its ``config.json`` spells it, with some keys changed."""
    raw = {
        "vocab_size": 129280,
        "hidden_size": 4096,
        "num_hidden_layers": FLASH_LAYERS,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 2048,
        "num_hash_layers": 3,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 1.5,
        **changes,
    }
    return DeepseekV4Config.from_dict(raw)


def small(**changes: object) -> DeepseekV4Config:
    """The same architecture with few parameters."""
    sizes = {
        "vocab_size": 16,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
        "qk_rope_head_dim": 4,
        "q_lora_rank": 4,
        "o_groups": 1,
        "o_lora_rank": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 4,
        "num_hash_layers": 1,
        "compress_ratios": [0, 0, 0],
    }
    return flash(**{**sizes, **changes})


def test_row_64_experts_are_the_scaled_routed_sum_plus_the_shared_expert():
    layer = MixtureOfExperts(small(routed_scaling_factor=2.5), 1)
    unscaled = MixtureOfExperts(small(routed_scaling_factor=1.0), 1)
    for parameter in layer.parameters():
        parameter.data.normal_()
    unscaled.load_state_dict(layer.state_dict())
    x, tokens = torch.randn(5, 8), torch.zeros(5, dtype=torch.int64)
    shared = layer.shared_experts(x)
    routed = unscaled(x, tokens) - shared
    torch.testing.assert_close(layer(x, tokens), 2.5 * routed + shared, atol=1e-4, rtol=1e-4)


def test_row_66_the_joint_norm_of_queries_and_key_equals_two_norms():
    """The fused path for few rows normalises the query heads, which have no weight, and the key in one call."""
    q_THD, key_TD, weight_D = torch.randn(8, 4, 64), torch.randn(8, 64), torch.rand(64)
    weights = torch.ones(5, 64)
    weights[-1] = weight_D
    joint = RowNorm(weights, 1e-6)(torch.cat([q_THD, key_TD.unsqueeze(1)], dim=1))
    assert joint[:, :4].equal(RowNorm(torch.ones(64), 1e-6)(q_THD))
    assert joint[:, 4].equal(RowNorm(weight_D, 1e-6)(key_TD))
    torch.testing.assert_close(joint[:, 4], F.rms_norm(key_TD, (64,), weight_D, 1e-6))


def test_row_67_a_missing_attention_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, flash_mla.MODULE, None)
    with pytest.raises(UnsupportedError, match="flash_mla is not installed.*tokenspeed-flashmla"):
        flash_mla.load()


def test_row_67_a_missing_attention_call_is_named(monkeypatch):
    partial = types.ModuleType(flash_mla.MODULE)
    partial.get_mla_metadata = partial.flash_mla_with_kvcache = print
    monkeypatch.setitem(sys.modules, flash_mla.MODULE, partial)
    with pytest.raises(UnsupportedError, match="has no flash_mla_sparse_fwd"):
        flash_mla.load()


def test_row_68_the_attention_package_has_the_three_calls():
    pytest.importorskip(flash_mla.MODULE)
    calls = flash_mla.load()
    assert all(map(callable, (calls.get_mla_metadata, calls.flash_mla_with_kvcache, calls.flash_mla_sparse_fwd)))


def test_row_69_derived_dimensions_and_scale():
    config = flash()
    assert (config.head_dim, config.qk_rope_head_dim, config.nope_head_dim) == (512, 64, 448)
    assert (config.index_head_dim, config.sliding_window) == (128, 128)
    assert config.softmax_scale == 512**-0.5


@pytest.mark.parametrize("architectures", [None, ["DeepseekV4ForCausalLM"], ["DeepseekV4ForCausalLMNextN"]])
def test_row_70_the_nextn_layer_is_one_window_only_layer_after_the_target(architectures):
    config = flash(architectures=architectures)
    assert config.num_hidden_layers == FLASH_LAYERS and config.nextn_layer_ids == (FLASH_LAYERS,)
    assert config.ratio(FLASH_LAYERS) == 0 and not config.is_hash_routed(FLASH_LAYERS)


def test_row_71_nextn_parameters_have_the_names_of_the_checkpoint():
    names = set(NextNModel(small()).state_dict())
    assert {"mtp.0.norm.weight", "mtp.0.attn.wq_a.weight", "mtp.0.ffn.experts.w1", "mtp.0.e_proj.weight"} <= names
    assert all(name.startswith("mtp.0.") for name in names)
    assert not any(name.startswith(("mtp.0.emb.", "mtp.0.head.")) for name in names)


def test_row_72_rope_follows_the_kind_of_layer():
    scaling = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    before = dict(scaling)
    config = flash(rope_scaling=scaling)
    yarn = YarnScaling(factor=16, beta_fast=32, beta_slow=1, original_positions=65536)
    window, csa, hca, nextn = (config.rope(layer) for layer in (0, 2, 3, FLASH_LAYERS))
    assert (window.theta, window.yarn) == (10000, None) and nextn == window
    assert (csa.theta, csa.yarn) == (160000, yarn) and hca == csa
    assert scaling == before


def hyper_weights(num: int, width: int, scale: list[float]) -> HyperWeights:
    mixes = 2 * num + num * num
    return HyperWeights(fn=torch.randn(mixes, num * width), base=torch.randn(mixes), scale=torch.tensor(scale))


def test_row_80_hyper_connections_have_the_expected_shapes():
    config = small(hc_mult=4)
    streams = torch.randn(3, 4, 5)
    mixed = mix_in(streams, hyper_weights(4, 5, [1.0, 1.0, 1.0]), config)
    assert (mixed.input.shape, mixed.post.shape, mixed.comb.shape) == ((3, 5), (3, 4), (3, 4, 4))
    assert mixed.post.dtype == mixed.comb.dtype == torch.float32
    assert mix_out(torch.randn(3, 5), streams, mixed).shape == (3, 4, 5)


def test_row_81_mixing_in_follows_the_formula():
    config = small(hc_mult=3, hc_sinkhorn_iters=3)
    weights, streams = hyper_weights(3, 4, [0.7, 1.1, 0.5]), torch.randn(2, 3, 4)
    mixed = mix_in(streams, weights, config)
    for row in range(2):
        flat = streams[row].flatten()
        mixes = weights.fn @ flat * torch.rsqrt(flat.square().mean() + config.rms_norm_eps)
        pre = torch.sigmoid(mixes[:3] * 0.7 + weights.base[:3]) + config.hc_eps
        post = 2 * torch.sigmoid(mixes[3:6] * 1.1 + weights.base[3:6])
        comb = torch.softmax((mixes[6:] * 0.5 + weights.base[6:]).view(3, 3), dim=1) + config.hc_eps
        comb = comb / (comb.sum(0, keepdim=True) + config.hc_eps)
        for _ in range(2):
            comb = comb / (comb.sum(1, keepdim=True) + config.hc_eps)
            comb = comb / (comb.sum(0, keepdim=True) + config.hc_eps)
        torch.testing.assert_close(mixed.input[row], pre @ streams[row], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mixed.post[row], post, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mixed.comb[row], comb, atol=1e-5, rtol=1e-5)


def test_row_82_the_first_index_of_the_mixing_matrix_is_the_source():
    streams = torch.tensor([[[1.0], [10.0]]])
    comb = torch.tensor([[[0.1, 0.2], [0.3, 0.4]]])
    mixed = MixedIn(input=torch.zeros(1, 1), post=torch.tensor([[2.0, 3.0]]), comb=comb)
    new = mix_out(torch.tensor([[100.0]]), streams, mixed)
    torch.testing.assert_close(new, torch.tensor([[[200 + 0.1 + 3.0], [300 + 0.2 + 4.0]]]))


def test_row_83_hyper_connections_run_on_the_cpu():
    config = small(hc_mult=4)
    streams, weights = torch.randn(3, 4, 5, device="cpu"), hyper_weights(4, 5, [1.0, 1.0, 1.0])
    with torch.no_grad():
        host = mix_in(streams, weights, config)
    differentiable = mix_in(streams.requires_grad_(), weights, config)
    torch.testing.assert_close(host.comb, differentiable.comb.detach(), atol=1e-6, rtol=1e-5)


def test_row_84_head_collapse_keeps_rows_and_width():
    weights = HyperWeights(fn=torch.randn(4, 24), base=torch.randn(4), scale=torch.ones(1))
    assert collapse(torch.randn(2, 4, 6), weights, small(hc_mult=4)).shape == (2, 6)


def test_row_85_the_bias_selects_but_does_not_weigh():
    logits = torch.tensor([[1.0, 2.0, 0.5, -1.0], [0.3, 0.2, 0.1, 0.0]])
    bias = torch.tensor([0.0, -0.4, 0.6, 0.0])
    scores = router_scores(logits, torch.eye(4))
    torch.testing.assert_close(scores, F.softplus(logits).sqrt())
    ids = choose_experts(scores, bias, 2)
    assert torch.equal(ids, (scores + bias).topk(2).indices)
    assert not torch.equal(ids.sort().values, scores.topk(2).indices.sort().values)
    weights = routing_weights(scores, ids, normalise=True, factor=1.5)
    chosen = scores.gather(1, ids)
    torch.testing.assert_close(weights, 1.5 * chosen / chosen.sum(1, keepdim=True))


def test_row_86_hash_routing_takes_ids_from_the_table_and_weights_from_the_gate():
    router = Router(small(routed_scaling_factor=1.0), 0)
    router.weight.data.normal_()
    router.tid2eid[3], router.tid2eid[1] = torch.tensor([3, 1]), torch.tensor([2, 3])
    x = torch.randn(2, 8)
    ids, weights = router(x, torch.tensor([3, 1]))
    assert ids.tolist() == [[3, 1], [2, 3]]
    chosen = router_scores(x, router.weight).gather(1, ids)
    torch.testing.assert_close(weights, chosen / chosen.sum(1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_87_the_gate_gives_float32_scores(dtype):
    scores = router_scores(torch.randn(3, 8).to(dtype), torch.randn(4, 8).to(dtype))
    assert scores.shape == (3, 4) and scores.dtype == torch.float32


def test_row_89_the_router_of_full_size_matches_the_plain_formula():
    logits, bias = torch.randn(16, 256), torch.randn(256) * 0.1
    scores = router_scores(logits, torch.eye(256))
    ids = choose_experts(scores, bias, 6)
    expected = F.softplus(logits).sqrt()
    assert torch.equal(ids, (expected + bias).topk(6).indices)
    weights = routing_weights(scores, ids, normalise=True, factor=2.5)
    torch.testing.assert_close(weights.sum(-1), torch.full((16,), 2.5))


def test_row_90_scores_of_all_experts_are_available_beside_the_choice():
    scores = router_scores(torch.randn(2, 256), torch.eye(256))
    ids = choose_experts(scores, torch.zeros(256), 6)
    assert scores.shape == (2, 256) and ids.shape == (2, 6)
    assert (scores.gather(1, ids).min(1).values >= scores.sort(1, descending=True).values[:, 5]).all()


def test_row_92_the_hash_router_of_full_size_matches_the_plain_formula():
    config = small(n_routed_experts=256, num_experts_per_tok=6)
    router = Router(config, 0)
    router.weight.data.normal_()
    router.tid2eid.copy_(torch.rand(16, 256).argsort(1)[:, :6])
    x, tokens = torch.randn(5, 8), torch.randint(0, 16, (5,))
    ids, weights = router(x, tokens)
    assert torch.equal(ids, router.tid2eid[tokens])
    chosen = F.softplus(x @ router.weight.T).sqrt().gather(1, ids)
    torch.testing.assert_close(weights, 1.5 * chosen / chosen.sum(1, keepdim=True))


@pytest.mark.parametrize(("ratio", "channels"), [(4, 16), (128, 8)])
def test_row_94_the_score_of_position_p_gains_the_embedding_of_p_modulo_the_ratio(ratio, channels):
    """The parameter keeps the checkpoint's order; nothing is permuted."""
    compressor = Compressor(small(), ratio, 8)
    for parameter in compressor.parameters():
        parameter.data.normal_()
    positions = torch.tensor([0, 1, 3, 4, 6, 127, 128, 131])
    x = torch.randn(len(positions), 8)
    values, scores = compressor.state_rows(x, positions).split(channels, dim=-1)
    assert compressor.ape.shape == (ratio, channels)
    for token, p in enumerate(positions.tolist()):
        torch.testing.assert_close(scores[token], compressor.wgate(x[token]) + compressor.ape[p % ratio])
        torch.testing.assert_close(values[token], compressor.wkv(x[token]))
