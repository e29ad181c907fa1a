"""Hyper-connections: the projection to doubly stochastic matrices, dtypes, and an identity-like start."""

import pytest
import torch

from backends.deepseek_v4.hyper_connections import HyperWeights, collapse, mix_in, mix_out
from backends.deepseek_v4.initialise import initialise
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.ops.sinkhorn import host, reference, sinkhorn


def random_weights(num, width):
    mixes = 2 * num + num * num
    return HyperWeights(fn=torch.randn(mixes, num * width), base=torch.randn(mixes), scale=torch.rand(3) + 0.5)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_rounds_make_rows_and_columns_sum_to_one(num):
    out = sinkhorn(torch.randn(7, num, num), 20, 1e-6)
    assert (out >= 0).all()
    torch.testing.assert_close(out.sum(-1), torch.ones(7, num), atol=1e-3, rtol=0)
    torch.testing.assert_close(out.sum(-2), torch.ones(7, num), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (3, 5, 4, 4), (0, 4, 4), (6, 2, 2)])
@pytest.mark.parametrize("rounds", [1, 2, 20])
def test_host_rounds_equal_the_reference(shape, rounds):
    logits = torch.randn(shape) * 5
    torch.testing.assert_close(
        host.sinkhorn(logits, rounds, 1e-6), reference.sinkhorn(logits, rounds, 1e-6), atol=1e-6, rtol=1e-5
    )


def test_host_result_of_a_matrix_does_not_depend_on_its_batch():
    logits = torch.randn(37, 4, 4)
    batched = host.sinkhorn(logits, 20, 1e-6)
    assert torch.equal(host.sinkhorn(logits[5:6], 20, 1e-6), batched[5:6])
    assert torch.equal(host.sinkhorn(logits[10:14], 20, 1e-6), batched[10:14])


def test_mixing_takes_any_leading_dimensions(tiny):
    config, weights = tiny(), random_weights(4, 64)
    streams, output = torch.randn(2, 3, 4, 64), torch.randn(2, 3, 64)
    mixed = mix_in(streams, weights, config)
    new = mix_out(output, streams, mixed)
    single = mix_in(streams[1, 2], weights, config)
    torch.testing.assert_close(single.input, mixed.input[1, 2])
    torch.testing.assert_close(mix_out(output[1, 2], streams[1, 2], single), new[1, 2])


def test_weights_are_decided_in_float32_under_autocast_and_for_bf16_streams(tiny):
    config, weights = tiny(), random_weights(4, 64)
    streams = torch.randn(5, 4, 64).bfloat16()
    wide = mix_in(streams.float(), weights, config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = mix_in(streams, weights, config)
        new = mix_out(torch.randn(5, 64).bfloat16(), streams, narrow)
    assert (narrow.input.dtype, new.dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(narrow.post, wide.post)
    torch.testing.assert_close(narrow.comb, wide.comb)


def test_gradients_through_the_rounds_equal_those_of_plain_torch(tiny):
    config, weights = tiny(), random_weights(4, 64)
    streams = torch.randn(3, 4, 64, requires_grad=True)
    probe = torch.randn(3, 4, 4)
    (grad,) = torch.autograd.grad((mix_in(streams, weights, config).comb * probe).sum(), streams)
    flat = streams.flatten(-2)
    mixes = (flat @ weights.fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    logits = (mixes[:, 8:] * weights.scale[2] + weights.base[8:]).unflatten(-1, (4, 4))
    (expected,) = torch.autograd.grad((reference.sinkhorn(logits, 20, config.hc_eps) * probe).sum(), streams)
    torch.testing.assert_close(grad, expected, atol=1e-5, rtol=1e-3)


def test_collapse_weights_are_not_normalised(tiny):
    weights = HyperWeights(fn=torch.zeros(4, 256), base=torch.tensor([0.0, 50.0, -50.0, -50.0]), scale=torch.ones(1))
    streams = torch.randn(3, 4, 64)
    torch.testing.assert_close(
        collapse(streams, weights, tiny()), 0.5 * streams[:, 0] + streams[:, 1], atol=1e-4, rtol=1e-4
    )


def test_training_starts_with_streams_that_pass_through(tiny):
    config = tiny()
    model = DeepseekV4Model(config)
    initialise(model, config, torch.Generator().manual_seed(1))
    streams = torch.randn(3, 4, 64)
    mixed = mix_in(streams, model.layers[0].hc_attn, config)
    kept = mix_out(torch.zeros(3, 64), streams, mixed)
    torch.testing.assert_close(kept, streams, atol=0.15, rtol=0)
    torch.testing.assert_close(mixed.post, torch.ones(3, 4), atol=0.05, rtol=0)


def test_training_start_is_reproducible_and_touches_every_parameter(tiny):
    config = tiny()
    states = []
    for _ in range(2):
        model = DeepseekV4Model(config)
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
        initialise(model, config, torch.Generator().manual_seed(3))
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        assert not tensor.isnan().any() if tensor.is_floating_point() else True, name
        assert torch.equal(tensor, states[1][name]), name
    table = states[0]["layers.0.ffn.gate.tid2eid"]
    assert all(len(set(row)) == 2 for row in table.tolist())
    assert table.flatten().bincount(minlength=8).max() <= table.flatten().bincount(minlength=8).min() + 2
