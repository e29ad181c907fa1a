"""The paged NextN backend gives what the whole-sequence one gives, catch-up and single steps alike."""

from dataclasses import replace

import pytest
import torch

from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from backends.nextn.plan import plan_step
from drafters.nextn import NextnConfig
from specdec.api import LAST_LAYER, DraftBackend, DraftSetup
from specdec.errors import CapacityError, ConfigError, MetadataError

TOLERANCE = {"atol": 3e-5, "rtol": 1e-4}


def backend_of(world, max_batch=4):
    return NextNBackend.build(world.nextn, world.target, NextNBackendConfig(max_batch=max_batch))


def run_round(world, backend, chunks, texts, *, num_committed, wanted=True):
    """One target pass over (row, start, tokens) and the draft's catch-up after it; returns (logits, input)."""
    out = world.run(chunks, hidden_layers=(LAST_LAYER,))
    following = [texts[row][start + j + 1] for row, start, tokens in chunks for j in range(len(tokens))]
    inputs = world.draft_input(chunks, following, out.hidden_TD, num_committed=num_committed, wanted=wanted)
    return backend.begin_draft(inputs), inputs


@pytest.mark.parametrize("sizes", [[40], [1] * 12, [3, 5, 1, 30, 2, 70], [16, 16, 16, 16], [64, 64, 2]])
def test_catch_up_equals_dense_however_the_text_is_cut(world, text, sizes):
    expected = world.dense_nextn_logits(text[: sum(sizes) + 1], depth=1)[0]
    backend, start = backend_of(world), 0
    for size in sizes:
        chunk = [(2, start, text[start : start + size])]
        logits_BV, _ = run_round(world, backend, chunk, [text] * 4, num_committed=[size])
        start += size
        torch.testing.assert_close(logits_BV[0], expected[start - 1], **TOLERANCE)


@pytest.mark.parametrize("committed", [1, 2, 3, 4])
def test_rejected_rows_are_rewritten_before_they_are_seen(world, text, committed):
    backend = backend_of(world)
    run_round(world, backend, [(0, 0, text[:62])], [text], num_committed=[62])
    wrong = text[62 : 62 + committed] + [(t + 1) % 97 for t in text[62 + committed : 66]]
    # Rows from `committed` on hold wrong tokens, and so do the tokens that follow them.
    out = world.run([(0, 62, wrong)], hidden_layers=(LAST_LAYER,))
    following = text[63 : 63 + committed] + [0] * (4 - committed)
    inputs = world.draft_input([(0, 62, wrong)], following, out.hidden_TD, num_committed=[committed])
    newest = 62 + committed
    expected = world.dense_nextn_logits(text[:80], depth=1)[0]
    torch.testing.assert_close(backend.begin_draft(inputs)[0], expected[newest - 1], **TOLERANCE)
    chunk = [(0, newest, text[newest : newest + 6])]
    logits_BV, _ = run_round(world, backend, chunk, [text], num_committed=[6])
    torch.testing.assert_close(logits_BV[0], expected[newest + 5], **TOLERANCE)


def test_steps_equal_dense_depths_for_ragged_requests(world, text):
    texts = [text, text[100:], text[200:]]
    backend = backend_of(world)
    chunks = [(0, 0, texts[0][:63]), (1, 0, texts[1][:5]), (2, 0, texts[2][:128])]
    logits_BV, inputs = run_round(world, backend, chunks, texts, num_committed=[63, 5, 128])
    expected = [world.dense_nextn_logits(t[:140], depth=4) for t in texts]
    for step in range(4):
        if step:
            drafted_B = torch.tensor([t[len(c) + step] for t, (_, _, c) in zip(texts, chunks, strict=True)])
            backend.advance_draft_forward_metadata(inputs.seq_lens_B + step)
            logits_BV = backend.forward(drafted_B)
        for b, (_, _, chunk) in enumerate(chunks):
            torch.testing.assert_close(logits_BV[b], expected[b][step][len(chunk) - 1 + step], **TOLERANCE)


def test_advancing_equals_planning_afresh(world, text):
    backend = backend_of(world)
    chunks = [(0, 0, text[:62]), (3, 0, text[:30])]
    _, inputs = run_round(world, backend, chunks, [text] * 4, num_committed=[62, 30])
    for step in range(1, 6):
        lengths_B = inputs.seq_lens_B + step
        backend.advance_draft_forward_metadata(lengths_B)
        fresh = plan_step(lengths_B, inputs.tables["v4.swa_kv"], backend.spec)
        held = backend.step_plan
        assert held.positions_T.equal(fresh.positions_T)
        assert held.write_slots["v4.swa_kv"].equal(fresh.write_slots["v4.swa_kv"])
        assert held.segments[0].window_slots_GK.equal(fresh.segments[0].window_slots_GK)
        assert held.segments[0].window_bias_GQK.equal(fresh.segments[0].window_bias_GQK)


def test_advancing_moves_no_tensor_and_changes_no_length(world, text):
    backend = backend_of(world)
    _, inputs = run_round(world, backend, [(0, 0, text[:20])], [text], num_committed=[20])
    lengths_B = inputs.seq_lens_B + 1
    backend.advance_draft_forward_metadata(lengths_B)
    first = addresses(backend.step_plan)
    backend.forward(torch.tensor([text[21]]))
    backend.advance_draft_forward_metadata(lengths_B + 1)
    assert addresses(backend.step_plan) == first
    assert lengths_B.tolist() == [21]


def addresses(plan):
    segment = plan.segments[0]
    tensors = (plan.positions_T, plan.write_slots["v4.swa_kv"], segment.window_slots_GK, segment.window_bias_GQK)
    return [t.data_ptr() for t in tensors]


def test_a_prompt_in_the_middle_is_caught_up_without_a_proposal(world, text):
    backend = backend_of(world)
    run_round(world, backend, [(0, 0, text[:40])], [text], num_committed=[40], wanted=False)
    logits_BV, _ = run_round(world, backend, [(0, 40, text[40:50])], [text], num_committed=[10])
    torch.testing.assert_close(logits_BV[0], world.dense_nextn_logits(text[:51], depth=1)[0][49], **TOLERANCE)


def test_an_advance_before_begin_is_refused(world):
    with pytest.raises(MetadataError, match="draft metadata was not initialized"):
        backend_of(world).advance_draft_forward_metadata(torch.tensor([3]))


def test_an_advance_of_another_batch_is_refused(world, text):
    backend = backend_of(world)
    run_round(world, backend, [(0, 0, text[:5])], [text], num_committed=[5])
    with pytest.raises(MetadataError, match="begun with 1 requests"):
        backend.advance_draft_forward_metadata(torch.tensor([6, 7]))


def test_missing_streams_are_refused(world, text):
    inputs = world.draft_input([(0, 0, text[:3])], text[1:4], None, num_committed=[3])
    with pytest.raises(MetadataError, match="LAST_LAYER"):
        backend_of(world).begin_draft(inputs)


def test_too_many_requests_are_refused(world, text):
    with pytest.raises(CapacityError, match="max_batch=1"):
        run_round(
            world,
            backend_of(world, max_batch=1),
            [(0, 0, text[:3]), (1, 0, text[:3])],
            [text] * 2,
            num_committed=[3, 3],
        )


def test_the_pool_must_be_a_single_window_layer(world):
    with pytest.raises(ConfigError, match="one window-only layer"):
        NextNBackend(
            world.nextn,
            embed=world.target.model.embed,
            head=world.target.model.head,
            pool=world.target.pool,
            max_context=64,
            config=NextNBackendConfig(),
        )


def test_the_backend_is_a_draft_backend_and_drafts_through_the_drafter(world, text):
    backend = backend_of(world)
    assert isinstance(backend, DraftBackend)
    setup = DraftSetup(device=torch.device("cpu"), vocab_size=97, max_batch=4, max_context=640, draft_backend=backend)
    drafter = NextnConfig(num_draft_tokens=3, proposals="greedy").build(setup)
    out = world.run([(0, 0, text[:33])], hidden_layers=(LAST_LAYER,))
    inputs = world.draft_input([(0, 0, text[:33])], text[1:34], out.hidden_TD, num_committed=[33])
    proposal = drafter.propose(inputs)
    known = list(text[:34])
    for i in range(3):
        # Drafting greedily is teacher forcing with the drafted tokens themselves.
        step_logits = world.dense_nextn_logits(known + [0], depth=i + 1)[i]
        known.append(int(step_logits[32 + i].argmax()))
    assert proposal.tokens_BK.tolist() == [known[34:]]


@pytest.mark.parametrize(
    ("lengths", "committed", "newest"),
    [((4, 4, 4, 4), [0, 1, 4, 99], [0, 4, 11, 15]), ((2, 4, 4), [2, 0, 4], [1, 2, 9])],
)
def test_newest_rows_stay_within_their_request(world, text, lengths, committed, newest):
    chunks = [(row, 0, text[:length]) for row, length in enumerate(lengths)]
    inputs = world.draft_input(chunks, text[: sum(lengths)], None, num_committed=[0] * len(lengths))
    assert replace(inputs, num_committed_B=torch.tensor(committed)).newest_rows().tolist() == newest
