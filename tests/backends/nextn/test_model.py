"""NextN: how streams and embeddings join, and that recursive training depths are what drafting runs."""

from dataclasses import replace

import pytest
import torch

from backends.deepseek_v4.dense import dense_forward
from backends.nextn.dense import dense_nextn
from backends.nextn.model import NextNModel
from specdec.errors import ConfigError

LENGTH = 20


def run_pair(make_pair, depth, **changes):
    target, draft = make_pair(**changes)
    tokens = torch.randint(0, 31, (2, LENGTH + 1))
    with torch.no_grad():
        streams = dense_forward(target, tokens[:, :LENGTH]).streams
        outputs = dense_nextn(draft, target.embed, streams, tokens[:, 1:], depth=depth)
    return target, draft, tokens, streams, outputs


def one_slot(draft, target, streams, token, position, past_keys):
    """One draft step as at inference: keys of earlier slots are given; returns own streams and own key."""
    made = []

    def step(attention, x):
        rope = draft.window_rotary(torch.tensor(position))
        q, key, _ = attention.project(x, rope)
        made.append(key)
        keys = torch.stack([*past_keys, key])[-draft.config.sliding_window :]
        out = attention.attend(q.unsqueeze(0), keys, torch.ones(1, len(keys), dtype=torch.bool))
        return attention.output(out.squeeze(0), rope)

    return draft(streams, target.embed(token), torch.tensor(position), token, step), made[0]


@pytest.mark.parametrize("start", [0, 3, 14])
def test_every_depth_equals_drafting_step_by_step(make_pair, start):
    target, draft, tokens, streams, outputs = run_pair(make_pair, 4)
    with torch.no_grad():
        keys = []
        for slot in range(start + 1):
            own, key = one_slot(draft, target, streams[0, slot], tokens[0, slot + 1], slot, keys)
            keys.append(key)
            torch.testing.assert_close(own, outputs[0][0, slot], atol=1e-5, rtol=1e-4)
        for depth in range(2, 5):
            slot = start + depth - 1
            own, key = one_slot(draft, target, own, tokens[0, slot + 1], slot, keys)
            keys.append(key)
            torch.testing.assert_close(own, outputs[depth - 1][0, slot], atol=1e-5, rtol=1e-4)


def test_depth_one_is_the_first_output_of_a_deeper_run(make_pair):
    target, draft, tokens, streams, outputs = run_pair(make_pair, 3)
    with torch.no_grad():
        (single,) = dense_nextn(draft, target.embed, streams, tokens[:, 1:])
    assert torch.equal(single, outputs[0])


def test_a_slot_ignores_tokens_and_streams_to_its_right(make_pair):
    target, draft, tokens, streams, outputs = run_pair(make_pair, 3)
    changed_streams, changed_tokens = streams.clone(), tokens.clone()
    changed_streams[:, 9:] += 1.0
    changed_tokens[:, 10:] = (changed_tokens[:, 10:] + 1) % 31
    with torch.no_grad():
        changed = dense_nextn(draft, target.embed, changed_streams, changed_tokens[:, 1:], depth=3)
    for before, after in zip(outputs, changed, strict=True):
        torch.testing.assert_close(after[:, :9], before[:, :9], atol=1e-6, rtol=1e-5)
        assert not torch.allclose(after[:, 9], before[:, 9], atol=1e-3)


def test_gradients_of_deeper_losses_reach_the_first_depth(make_pair):
    target, draft = make_pair()
    tokens = torch.randint(0, 31, (1, LENGTH + 1))
    streams = dense_forward(target, tokens[:, :LENGTH]).streams.detach().requires_grad_()
    outputs = dense_nextn(draft, target.embed, streams, tokens[:, 1:], depth=2)
    (grad,) = torch.autograd.grad(draft.logits(outputs[1][:, 5], target.head).logsumexp(-1).sum(), streams)
    assert grad[:, 4].abs().sum() > 0
    assert grad[:, 5:].abs().sum() == 0


def test_embedding_term_is_shared_by_all_streams_and_hidden_term_is_not(make_pair):
    _, draft = make_pair()
    layer, streams, embedding = draft.layer, torch.randn(5, 4, 32), torch.randn(5, 32)
    combined = draft.combine(streams, embedding, torch.arange(5))
    for stream in range(4):
        expected = layer.h_proj(layer.hnorm(streams[:, stream])) + layer.e_proj(layer.enorm(embedding))
        torch.testing.assert_close(combined[:, stream], expected)


@pytest.mark.parametrize("zeroed", [False, True])
def test_first_embedding_is_real_unless_the_configuration_zeroes_it(make_pair, zeroed):
    _, draft = make_pair(zero_first_nextn_embedding=zeroed)
    streams, embeddings = torch.randn(2, 4, 32), torch.randn(2, 32)
    combined = draft.combine(streams, embeddings, torch.arange(2))
    without = draft.combine(streams, torch.zeros(2, 32), torch.arange(2))
    assert torch.equal(combined[0], without[0]) is zeroed
    assert not torch.equal(combined[1], without[1])


def test_parameter_names_are_those_of_the_checkpoint(make_pair):
    _, draft = make_pair()
    names = set(draft.state_dict())
    own = {f"mtp.0.{n}" for n in ("e_proj.weight", "h_proj.weight", "enorm.weight", "hnorm.weight", "norm.weight")}
    head = {f"mtp.0.hc_head_{part}" for part in ("fn", "base", "scale")}
    assert own | head <= names
    assert {"mtp.0.attn.attn_sink", "mtp.0.ffn.gate.bias", "mtp.0.ffn.experts.w1", "mtp.0.hc_attn_fn"} <= names
    assert not any("embed" in n or "compressor" in n or "tid2eid" in n or n.endswith(".head.weight") for n in names)


def test_a_configuration_without_nextn_layer_is_refused(make_pair):
    target, _ = make_pair()
    config = replace(target.config, num_nextn_predict_layers=0, compress_ratios=(0, 0))
    with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
        NextNModel(config)
