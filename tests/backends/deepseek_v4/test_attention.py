"""The softmax with a sink, key layouts, and the grouped output projection."""

import torch

from backends.deepseek_v4.attention import Attention, attend, sink_softmax
from backends.deepseek_v4.rope import Rope


def no_rotation(*shape):
    return Rope(cos=torch.ones(*shape, 8), sin=torch.zeros(*shape, 8))


def naive(q, keys, sinks, scale):
    """One query [H, d] over its visible keys [n, d], in float64."""
    q, keys, sinks = q.double(), keys.double(), sinks.double()
    logits = q @ keys.T * scale
    weights = logits.exp() / (logits.exp().sum(-1, keepdim=True) + sinks.exp().unsqueeze(-1))
    return (weights @ keys).float()


def test_attention_equals_the_formula_for_every_query():
    q, keys, sinks = torch.randn(2, 5, 3, 8), torch.randn(2, 7, 8), torch.randn(3)
    valid = torch.rand(2, 5, 7) < 0.6
    out = attend(q, keys, valid, sinks, 0.3)
    for b in range(2):
        for t in range(5):
            torch.testing.assert_close(out[b, t], naive(q[b, t], keys[b, valid[b, t]], sinks, 0.3))


def test_keys_of_one_query_join_the_shared_ones():
    q, keys, own, sinks = torch.randn(4, 3, 8), torch.randn(6, 8), torch.randn(4, 2, 8), torch.randn(3)
    valid = torch.rand(4, 6) < 0.5
    out = attend(q, keys, valid, sinks, 0.3, own)
    for t in range(4):
        torch.testing.assert_close(out[t], naive(q[t], torch.cat((keys[valid[t]], own[t])), sinks, 0.3))


def test_a_query_without_any_key_gives_zero_even_with_an_infinite_sink():
    q, keys = torch.randn(1, 2, 8), torch.randn(3, 8)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert torch.equal(attend(q, keys, nothing, torch.tensor([0.0, 1.0]), 1.0), torch.zeros(1, 2, 8))
    assert not attend(q, keys, nothing, torch.tensor([float("-inf"), 0.0]), 1.0).isnan().any()


def test_sink_takes_its_share_and_large_scores_do_not_overflow():
    scores = torch.tensor([[[1000.0, 999.0]]])
    weights = sink_softmax(scores, torch.tensor([1000.0]))
    share = torch.tensor([1.0, 1.0, torch.e**-1]) / (2 + torch.e**-1)
    torch.testing.assert_close(weights[0, 0], share[[0, 2]])


def test_gradients_are_finite_where_entries_are_masked():
    q = torch.randn(2, 2, 8, requires_grad=True)
    sinks = torch.zeros(2, requires_grad=True)
    valid = torch.tensor([[True, False, False], [False, False, False]])
    attend(q, torch.randn(3, 8), valid, sinks, 1.0).square().sum().backward()
    assert q.grad.isfinite().all() and sinks.grad.isfinite().all() and sinks.grad.abs().sum() > 0


def test_heads_of_a_group_share_their_own_output_matrix(tiny):
    attention = Attention(tiny(), 0)
    rope = no_rotation(3)
    o = torch.randn(3, 4, 32)
    low = [o[:, 2 * g : 2 * g + 2].flatten(1) @ attention.wo_a.weight[12 * g : 12 * g + 12].T for g in range(2)]
    torch.testing.assert_close(attention.output(o, rope), attention.wo_b(torch.cat(low, dim=-1)))


def test_projection_takes_any_leading_dimensions(tiny):
    attention = Attention(tiny(), 0)
    x = torch.randn(2, 3, 64)
    q, key, latent = attention.project(x, no_rotation(3))
    assert (q.shape, key.shape, latent.shape) == ((2, 3, 4, 32), (2, 3, 32), (2, 3, 24))
    single = attention.project(x[1, 2], no_rotation())
    torch.testing.assert_close(single[0], q[1, 2])
    torch.testing.assert_close(single[1], key[1, 2])


def test_only_layers_that_compress_own_a_compressor(tiny):
    config = tiny()
    parts = [(a.compressor is not None, a.indexer is not None) for a in (Attention(config, i) for i in (0, 2, 3))]
    assert parts == [(False, False), (True, True), (True, False)]
