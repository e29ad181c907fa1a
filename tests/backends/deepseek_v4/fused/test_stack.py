"""Packed passes of fused operators give what passes planned on the host give, target and NextN layer alike."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.graph_state import pad_tables
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.target import packed_pass
from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from specdec.api import LAST_LAYER, PackedPass

CLOSE = {"atol": 3e-5, "rtol": 1e-4}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def pair(request, world_of):
    """(world on packed passes, the same world on planned ones); Triton kernels where there is a GPU."""
    device = torch.device(request.param)
    kernels = Kernels.TRITON if device.type == "cuda" else Kernels.REFERENCE
    return world_of(device=device, kernels=kernels), world_of(device=device)


def same_pass(pair, chunks, **options):
    ours, theirs = (world.run(chunks, hidden_layers=(0, LAST_LAYER), **options) for world in pair)
    torch.testing.assert_close(ours.logits_RV, theirs.logits_RV, **CLOSE)
    torch.testing.assert_close(ours.hidden_TD, theirs.hidden_TD, **CLOSE)


def test_prompts_and_verify_passes_equal_planned_ones(pair, text):
    same_pass(pair, [(0, 0, text[:70]), (2, 0, text[100:133])], num_prefill_reqs=2)
    same_pass(pair, [(1, 0, text[:260])], num_prefill_reqs=1)
    same_pass(pair, [(0, 70, text[70:75]), (1, 260, text[260:261]), (2, 33, text[133:137])])
    same_pass(pair, [(1, 261, text[261:264]), (0, 72, text[72:74])])


def test_no_operator_reads_unwritten_memory(nan_empty, pair, text):
    same_pass(pair, [(0, 0, text[:9])], num_prefill_reqs=1)
    same_pass(pair, [(0, 9, text[9:12])])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_padding_changes_nothing(world_of, text, data):
    world = world_of(kernels=Kernels.REFERENCE)
    lengths = data.draw(st.lists(st.integers(1, 140), min_size=1, max_size=3))
    starts = [(row, 0, text[row : row + n]) for row, n in enumerate(lengths)]
    world.run(starts, num_prefill_reqs=len(starts))
    chunks = [(row, n, text[row + n : row + n + 3]) for row, n in enumerate(lengths)]
    layout = world.layout(chunks)
    tokens_T = torch.tensor([t for _, _, tokens in chunks for t in tokens])
    packed = packed_pass(layout, tokens_T, world.tables(layout))
    order = data.draw(st.permutations(range(len(tokens_T) + 2)))
    padded = PackedPass(
        tokens_T=torch.cat([tokens_T, torch.tensor([0, 5])])[order],
        positions_T=torch.cat([packed.positions_T, torch.tensor([-1, -1], dtype=torch.int32)])[order],
        reqs_T=torch.cat([packed.reqs_T, torch.tensor([0, 0], dtype=torch.int32)])[order],
        tables=packed.tables,
    )
    expected = world.target.forward_packed(packed).logits_RV
    got = world.target.forward_packed(padded).logits_RV
    assert got.isfinite().all()
    kept = [order.index(t) for t in range(len(tokens_T))]
    torch.testing.assert_close(got[kept], expected, **CLOSE)


def test_the_draft_catches_up_and_steps_like_the_planned_one(pair, text):
    results = []
    for world in pair:
        draft = NextNBackend.build(world.nextn, world.target, NextNBackendConfig(max_batch=4))
        chunks = [(0, 0, text[:63]), (2, 0, text[200:205])]
        out = world.run(chunks, hidden_layers=(LAST_LAYER,), num_prefill_reqs=2)
        following = [*text[1:64], *text[201:206]]
        inputs = world.draft_input(chunks, following, out.hidden_TD, num_committed=[63, 5])
        logits = [draft.begin_draft(inputs)]
        for step in range(1, 4):
            draft.advance_draft_forward_metadata(inputs.seq_lens_B + step)
            logits.append(draft.forward(torch.tensor([5, 7 + step], device=world.device)))
        results.append(torch.stack(logits))
    torch.testing.assert_close(results[0], results[1], **CLOSE)


def test_padding_requests_leave_a_packed_draft_alone(world_of, text):
    world, width, start = world_of(kernels=Kernels.REFERENCE), 3, 61
    eager, packed = (NextNBackend.build(world.nextn, world.target, NextNBackendConfig(max_batch=4)) for _ in range(2))
    prompt = [(2, 0, text[:start])]
    out = world.run(prompt, hidden_layers=(LAST_LAYER,), num_prefill_reqs=1)
    for draft in (eager, packed):
        draft.begin_draft(world.draft_input(prompt, text[1 : start + 1], out.hidden_TD, num_committed=[start]))
    chunk = [(2, start, text[start : start + width])]
    out = world.run(chunk, hidden_layers=(LAST_LAYER,))
    following = text[start + 1 : start + 1 + width]
    inputs = world.draft_input(chunk, following, out.hidden_TD, num_committed=[2])
    positions_T = torch.full((4 * width,), -1, dtype=torch.int32)
    positions_T[:width] = torch.arange(start, start + width)
    padded = PackedPass(
        tokens_T=torch.zeros(4 * width, dtype=torch.int64),
        positions_T=positions_T,
        reqs_T=torch.arange(4, dtype=torch.int32).repeat_interleave(width),
        tables=pad_tables(inputs.tables, 4),
    )
    first = (
        eager.begin_draft(inputs),
        packed.begin_packed_draft(
            padded,
            hidden_TD=torch.nn.functional.pad(out.hidden_TD, (0, 0, 0, 3 * width)),
            next_tokens_T=torch.tensor([*following, *[0] * (3 * width)]),
            num_committed_B=torch.tensor([2, 1, 1, 1]),
        ),
    )
    rounds = [first]
    for step in (1, 2):
        eager.advance_draft_forward_metadata(inputs.seq_lens_B + step)
        packed.advance_draft_forward_metadata(torch.tensor([start + 2, 1, 1, 1]) + step)
        token = text[step]
        rounds.append((eager.forward(torch.tensor([token])), packed.forward(torch.tensor([token, 0, 0, 0]))))
    for one_BV, four_BV in rounds:
        torch.testing.assert_close(four_BV[:1], one_BV, **CLOSE)
        assert four_BV.isfinite().all()


@pytest.mark.gpu
def test_rows_do_not_depend_on_what_shares_the_pass(world_of, text):
    world = world_of(device=torch.device("cuda"), dtype=torch.bfloat16, kernels=Kernels.TRITON, cache_dtype="bf16")
    world.run([(0, 0, text[:70]), (1, 0, text[:33]), (2, 0, text[:128])], num_prefill_reqs=3)
    chunks = [(0, 70, text[70:74]), (1, 33, text[33:37]), (2, 128, text[128:132])]
    together = world.run(chunks).logits_RV
    for i, (row, start, tokens) in enumerate(chunks):
        for j in range(len(tokens)):
            alone = world.run([(row, start + j, tokens[j : j + 1])]).logits_RV
            assert alone[0].equal(together[4 * i + j])
