"""The fused path for a few rows gives what the plain modules give."""

import dataclasses

import pytest
import torch

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.config import CSA_RATIO, HCA_RATIO, DeepseekV4Config
from backends.deepseek_v4.few_rows.block import supports
from backends.deepseek_v4.few_rows.compression import FewRowsCompressor
from backends.deepseek_v4.few_rows.experts import FewRowsExperts
from backends.deepseek_v4.few_rows.head import FewRowsHead
from backends.deepseek_v4.few_rows.mixing import HostMixing, mix_out
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.few_rows.selection import index_scores, select_first
from backends.deepseek_v4.hyper_connections import HyperWeights
from backends.deepseek_v4.hyper_connections import mix_in as plain_mix_in
from backends.deepseek_v4.hyper_connections import mix_out as plain_mix_out
from backends.deepseek_v4.indexer import Indexer, select_topk
from backends.deepseek_v4.moe import MixtureOfExperts
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.sinkhorn import reference, scalar
from backends.deepseek_v4.ops.sinkhorn.batched import BatchedSinkhorn
from backends.deepseek_v4.rope import Rotary


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_scalar_sinkhorn_equals_the_reference(size, spread):
    logits = torch.randn(50, size, size) * spread
    expected = reference.sinkhorn(logits, 20, 1e-6)
    got = torch.tensor([scalar.sinkhorn(m.flatten().tolist(), 20, 1e-6) for m in logits]).view(50, size, size)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_scalar_sinkhorn_does_as_many_rounds_as_asked(rounds):
    logits = torch.randn(4, 4) * 3
    got = torch.tensor(scalar.sinkhorn(logits.flatten().tolist(), rounds, 1e-3)).view(4, 4)
    torch.testing.assert_close(got, reference.sinkhorn(logits, rounds, 1e-3), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("num_rounds", [1, 2, 20])
def test_batched_sinkhorn_equals_the_reference(size, num_rounds):
    logits = torch.randn(37, size, size) * 3
    got = torch.from_numpy(BatchedSinkhorn(size, num_rounds, 1e-6)(logits.flatten(1).numpy()))
    expected = reference.sinkhorn(logits, num_rounds, 1e-6)
    torch.testing.assert_close(got.view(37, size, size), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 9])
@pytest.mark.parametrize("num_streams", [2, 4])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_host_mixing_equals_hyper_connections(small_config: DeepseekV4Config, num_streams, scale, num_tokens):
    config = dataclasses.replace(small_config, hc_mult=num_streams)
    num_mixes = 2 * num_streams + num_streams**2
    weights = HyperWeights(
        fn=torch.randn(num_mixes, num_streams * config.hidden_size),
        base=torch.randn(num_mixes),
        scale=torch.randn(3) * scale,
    )
    streams_TSD = torch.randn(num_tokens, num_streams, config.hidden_size)
    # A logit of some thousands is itself known to 1e-4 only.
    tolerance = {"atol": 1e-5 * max(1.0, scale / 30), "rtol": 1e-4 * max(1.0, scale / 30)}
    expected = plain_mix_in(streams_TSD, weights, config)
    x_TD, mix_TSR = HostMixing(weights, config).mix_in(streams_TSD)
    torch.testing.assert_close(x_TD, expected.input, **tolerance)
    output_TD = torch.randn(num_tokens, config.hidden_size)
    got, wanted = mix_out(output_TD, streams_TSD, mix_TSR), plain_mix_out(output_TD, streams_TSD, expected)
    torch.testing.assert_close(got, wanted, **tolerance)


def randomised_experts(config, layer):
    ffn = MixtureOfExperts(config, layer)
    for parameter in ffn.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if ffn.gate.is_hash:
        ffn.gate.tid2eid.random_(0, config.n_routed_experts)
    return ffn


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("all_experts", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 8])
def test_few_rows_experts_equal_the_module(small_config, layer, all_experts, num_tokens):
    for change in ({}, {"norm_topk_prob": False, "swiglu_limit": 0.0, "num_experts_per_tok": 1}):
        config = dataclasses.replace(small_config, **change)
        ffn = randomised_experts(config, layer)
        x_TD = torch.randn(num_tokens, config.hidden_size)
        token_ids = torch.randint(0, config.vocab_size, (num_tokens,))
        fused = FewRowsExperts(ffn, all_experts=all_experts, half=not all_experts)
        with torch.no_grad():
            torch.testing.assert_close(fused(x_TD, token_ids.tolist()), ffn(x_TD, token_ids), atol=1e-5, rtol=1e-4)


def test_equal_router_scores_choose_the_lowest_expert(small_config):
    ffn = randomised_experts(small_config, 1)
    ffn.gate.weight.data.zero_()
    ffn.gate.bias.data.zero_()
    x_TD = torch.randn(2, small_config.hidden_size)
    fused = FewRowsExperts(ffn, all_experts=False, half=True)
    with torch.no_grad():
        torch.testing.assert_close(fused(x_TD, [0, 0]), ffn(x_TD, torch.zeros(2, dtype=torch.int64)))


@pytest.mark.parametrize(("ratio", "num_windows"), [(CSA_RATIO, 1), (CSA_RATIO, 3), (HCA_RATIO, 1), (HCA_RATIO, 2)])
@pytest.mark.parametrize("all_valid", [True, False])
def test_pooling_of_few_windows_equals_the_compressor(small_config, ratio, num_windows, all_valid):
    compressor = Compressor(small_config, ratio, small_config.head_dim)
    torch.nn.init.normal_(compressor.norm.weight)
    rope = Rotary(small_config.compress_rope)(torch.arange(num_windows) * ratio)
    rows = torch.randn(num_windows, compressor.window, compressor.state_width)
    valid = torch.ones(num_windows, compressor.window, dtype=torch.bool)
    if not all_valid:
        valid[0, : ratio // 2], rows[0, : ratio // 2] = False, float("nan")
    with torch.no_grad():
        got = FewRowsCompressor(compressor).pool(rows, valid, rope)
        torch.testing.assert_close(got, compressor.pool(rows, valid, rope), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("num_groups", "width", "num_rows"), [(1, 1, 75), (2, 4, 20), (3, 2, 40), (1, 4, 9), (1, 1, 700)]
)
@pytest.mark.parametrize("with_ties", [True, False])
def test_selection_of_few_queries_equals_the_plain_one(num_groups, width, num_rows, with_ties):
    scores_GMC = torch.randn(num_groups, width, num_rows)
    scores_GMC = scores_GMC.round() if with_ties else scores_GMC
    counts_GM1 = torch.randint(0, num_rows + 1, (num_groups, width, 1))
    expected = select_topk(scores_GMC, 8, torch.arange(num_rows) < counts_GM1)
    assert select_first(scores_GMC, 8, counts_GM1.flatten().tolist()).equal(expected)


def test_index_scores_equal_the_indexer(small_config):
    indexer = Indexer(small_config)
    q = torch.randn(2, 3, indexer.num_heads, indexer.head_dim)
    weights, keys = torch.randn(2, 3, indexer.num_heads), torch.randn(2, 11, indexer.head_dim)
    torch.testing.assert_close(index_scores(q, weights, keys), indexer.scores(q, weights, keys))


def test_few_rows_head_equals_the_model(small_config, random_model):
    model = random_model(small_config)
    streams_TSD = torch.randn(3, small_config.hc_mult, small_config.hidden_size)
    for half in (True, False):
        head = FewRowsHead(model.hc_head, model.norm.weight, model.head.weight, small_config, half=half)
        with torch.no_grad():
            torch.testing.assert_close(head(streams_TSD), model.logits(streams_TSD), atol=1e-5, rtol=1e-4)


def test_row_norm_equals_rms_norm():
    x = torch.randn(3, 5, 64) * torch.tensor([1e-4, 1.0, 1e4]).view(3, 1, 1)
    weight = torch.randn(64)
    torch.testing.assert_close(RowNorm(weight, 1e-6)(x), rms_norm(x, weight, 1e-6))


def test_the_fused_path_equals_the_plain_one(world_of, text):
    fused = world_of()
    plain = world_of(few_rows=0)
    start = 125
    for world in (fused, plain):
        world.run([(0, 0, text[:start]), (1, 0, text[:start])], num_prefill_reqs=2)
    for size in (1, 4, 8, 1, 2):
        chunks = [(0, start, text[start : start + size])]
        torch.testing.assert_close(fused.run(chunks).logits_RV, plain.run(chunks).logits_RV, atol=2e-5, rtol=1e-4)
        start += size


def test_only_float32_on_the_cpu_is_supported(world_of):
    assert supports(world_of().target.model)
    assert not supports(world_of(dtype=torch.bfloat16).target.model)
