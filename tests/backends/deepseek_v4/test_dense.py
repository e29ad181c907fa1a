"""Whole sequences: causality, block cutting, indexer traces, autocast and gradients."""

import pytest
import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.dense import dense_forward, visible_entries, window_attend
from backends.deepseek_v4.initialise import initialise
from backends.deepseek_v4.model import DeepseekV4Model, cast_parameters, stays_float32


@pytest.mark.parametrize("length", [1, 7, 64, 65, 100, 129])
@pytest.mark.parametrize("skip", [0, 2])
def test_blocks_see_the_same_window_as_one_big_mask(tiny, length, skip):
    attention, window = Attention(tiny(), 0), 32
    q, keys, own = torch.randn(2, length, 4, 32), torch.randn(2, length, 32), torch.randn(2, length, 1, 32)
    entries, chosen = torch.randn(2, 5, 32), torch.rand(2, length, 5) < 0.5
    out = window_attend(attention, q, keys, window, entries, chosen, skip=skip, own_keys=own)
    at = torch.arange(length)
    near = (at <= at.unsqueeze(-1) - skip) & (at > at.unsqueeze(-1) - window)
    valid = torch.cat((near.expand(2, -1, -1), chosen), dim=-1)
    expected = attention.attend(q, torch.cat((keys, entries), dim=1), valid, own)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)


def test_a_prefix_does_not_depend_on_what_follows(tiny, random_model):
    model = random_model(tiny())
    tokens = torch.randint(0, 67, (2, 270))
    with torch.no_grad():
        whole = model.logits(dense_forward(model, tokens).streams)
        for length in (5, 63, 131, 200):
            part = model.logits(dense_forward(model, tokens[:, :length]).streams)
            torch.testing.assert_close(part, whole[:, :length], atol=1e-4, rtol=0)


def test_an_entry_is_visible_once_its_last_token_is_past():
    assert visible_entries(torch.arange(9), 2, 4).sum(-1).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_traces_hold_scores_and_attention_mass_of_visible_rows(tiny, random_model):
    model = random_model(tiny(index_topk=512))
    output = dense_forward(model, torch.randint(0, 67, (2, 41)), with_traces=True)
    assert len(output.traces) == 2
    for trace in output.traces:
        assert trace.scores.shape == trace.mass.shape == (2, 41, 10) and trace.visible.shape == (41, 10)
        assert torch.equal(trace.scores.isfinite(), trace.visible.expand(2, -1, -1))
        assert (trace.mass[:, ~trace.visible] == 0).all() and (trace.mass[:, trace.visible] > 0).all()
        assert (trace.mass.sum(-1) < 4).all() and not trace.mass.requires_grad


def test_indexer_learns_from_its_trace_only_and_nothing_else_does(tiny, random_model):
    model = random_model(tiny())
    output = dense_forward(model, torch.randint(0, 67, (1, 41)), with_traces=True)
    trace = output.traces[1]
    loss = torch.log_softmax(trace.scores[:, 8:], -1).masked_fill(~trace.visible[8:], 0.0).sum()
    loss.backward(retain_graph=True)
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert reached and all(name.startswith("layers.4.attn.indexer.") for name in reached)
    assert len(reached) == 6
    model.zero_grad()
    model.logits(output.streams).logsumexp(-1).sum().backward()
    assert all(p.grad is None for name, p in model.named_parameters() if ".indexer." in name)
    assert all(
        p.grad is not None and p.grad.isfinite().all()
        for name, p in model.named_parameters()
        if ".indexer." not in name and not name.endswith("gate.bias")
    )


def test_selection_hides_rows_from_attention(tiny, random_model):
    few, many = tiny(index_topk=2), tiny(index_topk=512)
    model = random_model(few)
    other = DeepseekV4Model(many)
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, 67, (1, 60))
    with torch.no_grad():
        narrow, wide = (m.logits(dense_forward(m, tokens).streams) for m in (model, other))
    torch.testing.assert_close(narrow[:, :11], wide[:, :11], atol=1e-5, rtol=1e-4)
    assert (narrow - wide)[:, 12:].abs().max() > 1e-2


def test_autocast_stays_close_and_keeps_streams_in_the_asked_dtype(tiny):
    config = tiny(num_hash_layers=6, index_topk=512)
    model = DeepseekV4Model(config)
    initialise(model, config, torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 67, (2, 140))
    with torch.no_grad():
        exact = model.logits(dense_forward(model, tokens).streams)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = dense_forward(model, tokens, stream_dtype=torch.bfloat16)
            narrow = model.logits(output.streams)
    assert output.streams.dtype == torch.bfloat16 and narrow.dtype == torch.float32
    assert (narrow - exact).abs().max() < 0.4 * exact.std()


def test_a_cast_model_keeps_its_sensitive_parameters_in_float32(tiny, random_model):
    model = random_model(tiny())
    cast_parameters(model, torch.bfloat16)
    wide = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert all(stays_float32(name) for name in wide)
    for part in ("hc_attn_fn", "attn.attn_sink", "ffn.gate.weight", "compressor.ape", "compressor.wkv.weight"):
        assert any(name.endswith(part) for name in wide), part
    assert model.embed.weight.dtype == model.layers[2].attn.wkv.weight.dtype == torch.bfloat16
    with torch.no_grad():
        assert model.logits(dense_forward(model, torch.randint(0, 67, (1, 140))).streams).isfinite().all()


def test_first_loss_is_close_to_that_of_a_uniform_guess(tiny):
    config = tiny()
    model = DeepseekV4Model(config)
    initialise(model, config, torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 67, (4, 65))
    logits = model.logits(dense_forward(model, tokens[:, :-1]).streams)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - torch.tensor(67.0).log().item()) < 0.1
