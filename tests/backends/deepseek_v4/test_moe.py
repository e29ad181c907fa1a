"""Experts: every way to evaluate them agrees with one expert at a time, for any shape."""

import pytest
import torch
import torch.nn.functional as F

from backends.deepseek_v4.moe import ExpertPath, MixtureOfExperts, choose_experts, expert_activation, router_scores


@pytest.fixture
def layer(tiny, randomise):
    made = MixtureOfExperts(tiny(), 3)
    randomise(made)
    return made


def one_by_one(layer, x, ids, weights):
    """The routed sum of one token, expert by expert."""
    experts, total = layer.experts, torch.zeros_like(x)
    for expert, weight in zip(ids.tolist(), weights, strict=True):
        gate, up = F.linear(x, experts.w1[expert]), F.linear(x, experts.w3[expert])
        active = F.silu(gate.clamp(max=experts.limit)) * up.clamp(-experts.limit, experts.limit)
        total = total + weight * F.linear(active, experts.w2[expert])
    return total


@pytest.mark.parametrize("path", [*ExpertPath, None])
@pytest.mark.parametrize("shape", [(1, 64), (64,), (5, 64), (2, 3, 64), (40, 64), (0, 64)])
def test_every_path_equals_one_expert_at_a_time(layer, path, shape):
    x, tokens = torch.randn(shape), torch.zeros(shape[:-1], dtype=torch.int64)
    with torch.no_grad():
        ids, weights = layer.gate(x, tokens)
        out = layer.experts(x, ids, weights, path)
        assert out.shape == x.shape
        flat = zip(x.view(-1, 64), ids.view(-1, 2), weights.view(-1, 2), strict=True)
        expected = [one_by_one(layer, *row) for row in flat]
    if expected:
        torch.testing.assert_close(out.view(-1, 64), torch.stack(expected), atol=1e-5, rtol=1e-4)


def test_activation_clamps_gate_above_and_up_on_both_sides():
    gate, up = torch.tensor([20.0, -20.0, 1.0]), torch.tensor([20.0, -20.0, 3.0])
    torch.testing.assert_close(expert_activation(gate, up, 10.0), F.silu(gate.clamp(max=10)) * up.clamp(-10, 10))
    torch.testing.assert_close(expert_activation(gate, up, 0.0), F.silu(gate) * up)


def test_an_expert_that_is_not_chosen_gets_no_gradient(layer):
    x = torch.randn(1, 64)
    ids, weights = layer.gate(x, torch.zeros(1, dtype=torch.int64))
    layer.experts(x, ids, weights).sum().backward()
    touched = set(layer.experts.w1.grad.flatten(1).abs().sum(-1).nonzero().flatten().tolist())
    assert touched == set(ids.flatten().tolist())
    assert layer.gate.weight.grad is not None and layer.gate.bias.grad is None


def test_gradient_of_the_router_stays_finite_where_softplus_underflows():
    x = torch.full((1, 4), 100.0, requires_grad=True)
    router_scores(x, -torch.ones(3, 4)).sum().backward()
    assert x.grad.isfinite().all()


def test_equal_scores_take_the_lowest_expert():
    scores = torch.tensor([[0.5, 0.7, 0.5, 0.7, 0.5]])
    assert choose_experts(scores, torch.zeros(5), 3).tolist() == [[1, 3, 0]]


def test_hash_layers_route_by_token_id_whatever_the_input(tiny, randomise):
    made = MixtureOfExperts(tiny(), 0)
    randomise(made)
    tokens = torch.tensor([[3, 3], [66, 0]])
    ids, _ = made.gate(torch.randn(2, 2, 64), tokens)
    assert torch.equal(ids, made.gate.tid2eid[tokens])
    assert "bias" not in dict(made.gate.named_parameters())


def test_routing_is_decided_in_float32_under_autocast(layer):
    x, tokens = torch.randn(50, 64), torch.zeros(50, dtype=torch.int64)
    expected = layer.gate(x, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ids, weights = layer.gate(x, tokens)
    assert torch.equal(ids, expected[0]) and torch.equal(weights, expected[1])
