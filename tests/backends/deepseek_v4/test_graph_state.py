"""A pass over persistent buffers equals an eager one for every live batch, and nothing ever moves."""

import random
from dataclasses import fields, is_dataclass

import pytest
import torch

from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.graph_state import GraphStateInputs, copy_plan, pad_tables
from specdec.api import GroupTable
from specdec.cache.sizing import table_columns
from specdec.errors import MetadataError, UnsupportedError
from specdec.layout import ForwardMode, RoundLayout

WIDTH = 3
CONTEXT = 320


@pytest.fixture
def graph_world(world_of):
    """A world whose backend holds graph buffers for up to four requests."""
    world = world_of(max_context=CONTEXT)
    world.target.backend.init_cuda_graph_state(graph_inputs(world.target.cache_groups))
    return world


def graph_inputs(groups):
    return GraphStateInputs(
        max_batch=4,
        max_tokens_per_request=4,
        columns={g.group_id: table_columns(g, max_context=CONTEXT, horizon=8) for g in groups},
    )


def decode_inputs(world, rows, starts, *, num_reqs, width=WIDTH):
    layout = RoundLayout(rows=tuple(rows), start_positions=tuple(starts), query_lens=(width,) * len(rows))
    return ForwardInputs(
        mode=ForwardMode.DECODE if rows else ForwardMode.IDLE,
        rows=layout.rows,
        seq_lens=layout.seq_lens,
        tables=world.tables(layout) if rows else {},
        num_tokens=num_reqs * width,
    )


def capture(world, num_reqs, width=WIDTH):
    inputs = decode_inputs(world, range(num_reqs), [0] * num_reqs, num_reqs=num_reqs, width=width)
    return world.target.backend.init_forward_metadata_capture_cuda_graph(inputs)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_of(item)


def addresses(buffers):
    return [(t.data_ptr(), tuple(t.shape)) for t in tensors_of(buffers)]


@pytest.mark.parametrize("num_reqs", [1, 2, 4])
def test_replay_equals_eager_for_every_live_batch(graph_world, text, num_reqs):
    world, twin = graph_world, graph_world
    buffers = capture(world, num_reqs)
    held = addresses(buffers)
    starts = [126, 5, 63, 252]
    for row, start in enumerate(starts):
        world.run([(row, 0, text[row : row + start])], num_prefill_reqs=1)
    rng = random.Random(num_reqs)
    for live in list(range(num_reqs + 1)) * 2:
        rows = sorted(rng.sample(range(4), live))
        chunks = [(r, starts[r], text[r + starts[r] : r + starts[r] + WIDTH]) for r in rows]
        expected = twin.run(chunks).logits_RV if live else torch.empty(0, 97)
        inputs = decode_inputs(world, rows, [starts[r] for r in rows], num_reqs=num_reqs)
        replayed = world.target.backend.init_forward_metadata_replay_cuda_graph(inputs, num_reqs)
        assert replayed is buffers and addresses(replayed) == held
        tokens_T = torch.full((num_reqs * WIDTH,), 96)
        tokens_T[: live * WIDTH] = torch.tensor([t for _, _, c in chunks for t in c], dtype=torch.int64)
        out = world.target.run(replayed.plan, tokens_T, logit_rows=tuple(range(num_reqs * WIDTH)))
        torch.testing.assert_close(out.logits_RV[: live * WIDTH], expected, atol=2e-5, rtol=1e-4)
        assert out.logits_RV.isfinite().all()
        assert buffers.valid_T.tolist() == [True] * (live * WIDTH) + [False] * ((num_reqs - live) * WIDTH)


def test_another_width_captured_later_leaves_the_first_alone(graph_world):
    first = capture(graph_world, 2, width=3)
    held = addresses(first)
    other = capture(graph_world, 2, width=1)
    assert other is not first and addresses(first) == held
    assert not {a for a, _ in addresses(other.plan)} & {a for a, _ in addresses(first.plan)}
    assert capture(graph_world, 2, width=3) is first and addresses(first) == held


def test_eager_passes_do_not_touch_captured_tensors(graph_world, text):
    buffers = capture(graph_world, 2)
    before = [t.clone() for t in tensors_of(buffers)]
    graph_world.run([(0, 0, text[:9]), (1, 0, text[:9])])
    for held, old in zip(tensors_of(buffers), before, strict=True):
        assert held.equal(old)


def test_padding_requests_see_and_write_nothing(graph_world):
    capture(graph_world, 4)
    inputs = decode_inputs(graph_world, [1], [7], num_reqs=4)
    buffers = graph_world.target.backend.init_forward_metadata_replay_cuda_graph(inputs, 4)
    for slots_T in buffers.plan.write_slots.values():
        assert (slots_T[WIDTH:] == -1).all() and (slots_T[:WIDTH] > 0).all()
    (segment,) = buffers.plan.segments
    assert torch.isinf(segment.window_bias_GQK[1:]).all()
    assert buffers.tables["v4.swa_kv"].pages_BC[1:].eq(-1).all()
    assert buffers.tables["v4.swa_kv"].base_B[1:].eq(0).all()


def test_wide_table_is_refused(graph_world):
    capture(graph_world, 1)
    inputs = decode_inputs(graph_world, [1], [7], num_reqs=1)
    wide = GroupTable(pages_BC=torch.zeros(1, 99, dtype=torch.int32), base_B=torch.zeros(1, dtype=torch.int32))
    inputs = with_tables(inputs, {**inputs.tables, "v4.swa_kv": wide})
    with pytest.raises(MetadataError, match="v4.swa_kv: width mismatch, 99 table columns"):
        graph_world.target.backend.init_forward_metadata_replay_cuda_graph(inputs, 1)


def test_wrong_number_of_table_rows_or_bases_is_refused(graph_world):
    capture(graph_world, 4)
    inputs = decode_inputs(graph_world, [1], [7], num_reqs=4)
    pages_BC = torch.zeros(2, 1, dtype=torch.int32)
    rows = GroupTable(pages_BC=pages_BC, base_B=torch.zeros(2, dtype=torch.int32))
    bases = GroupTable(pages_BC=pages_BC[:1], base_B=torch.zeros(0, dtype=torch.int32))
    for table, message in ((rows, r"2 table rows for a pass of \[1, 4\]"), (bases, "0 base offsets for 1 table rows")):
        wrong = with_tables(inputs, {**inputs.tables, "v4.swa_kv": table})
        with pytest.raises(MetadataError, match=message):
            graph_world.target.backend.init_forward_metadata_replay_cuda_graph(wrong, 4)


def with_tables(inputs, tables):
    return ForwardInputs(
        mode=inputs.mode, rows=inputs.rows, seq_lens=inputs.seq_lens, tables=tables, num_tokens=inputs.num_tokens
    )


def test_unknown_keys_modes_and_widths_are_refused(graph_world):
    backend = graph_world.target.backend
    capture(graph_world, 2)
    inputs = decode_inputs(graph_world, [1], [7], num_reqs=1)
    with pytest.raises(MetadataError, match=r"no pass was captured for .* there are \[\(2, 3\)\]"):
        backend.init_forward_metadata_replay_cuda_graph(inputs, 1)
    prompt = ForwardInputs(mode=ForwardMode.EXTEND, rows=(0,), seq_lens=(3,), tables=inputs.tables)
    with pytest.raises(UnsupportedError, match="extend"):
        backend.init_forward_metadata_capture_cuda_graph(prompt)
    with pytest.raises(MetadataError, match="at most 4 tokens per request, got 5"):
        capture(graph_world, 1, width=5)
    with pytest.raises(MetadataError, match="max_batch"):
        backend.init_forward_metadata_replay_cuda_graph(inputs, 5)


def test_capturing_before_the_state_exists_is_refused(world):
    with pytest.raises(MetadataError, match="init_cuda_graph_state"):
        capture(world, 1)


def test_plans_of_other_shapes_are_not_copied(graph_world):
    one, two = capture(graph_world, 1), capture(graph_world, 2)
    with pytest.raises(MetadataError, match="plan"):
        copy_plan(one.plan, two.plan)


def test_padded_tables_pass_through_when_full():
    table = GroupTable(pages_BC=torch.tensor([[5, -1]], dtype=torch.int32), base_B=torch.tensor([2]))
    padded = pad_tables({"g": table}, 3)["g"]
    assert padded.pages_BC.tolist() == [[5, -1], [-1, -1], [-1, -1]]
    assert padded.base_B.tolist() == [2, 0, 0]
    assert pad_tables({"g": padded}, 3)["g"] is padded
    with pytest.raises(MetadataError, match="3 table rows exceed 2"):
        pad_tables({"g": padded}, 2)


@pytest.mark.gpu
def test_a_recorded_pass_equals_eager_for_every_live_batch(world_of, text):
    device = torch.device("cuda")
    world = world_of(max_context=CONTEXT, device=device)
    backend = world.target.backend
    backend.init_cuda_graph_state(graph_inputs(world.target.cache_groups))
    starts = [126, 5]
    for row, start in enumerate(starts):
        world.run([(row, 0, text[row : row + start])], num_prefill_reqs=1)
    tokens_T = torch.zeros(2 * WIDTH, dtype=torch.int64, device=device)
    every_row = tuple(range(2 * WIDTH))
    graphs = []
    for _ in range(2):
        buffers = capture(world, 2)
        world.target.run(buffers.plan, tokens_T, logit_rows=every_row)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = world.target.run(buffers.plan, tokens_T, logit_rows=every_row)
        graphs.append((graph, out))
    for rows in ([0], [0, 1], [1], []):
        chunks = [(r, starts[r], text[r + starts[r] : r + starts[r] + WIDTH]) for r in rows]
        inputs = decode_inputs(world, rows, [starts[r] for r in rows], num_reqs=2)
        backend.init_forward_metadata_replay_cuda_graph(inputs, 2)
        live = [t for _, _, c in chunks for t in c]
        tokens_T.copy_(torch.tensor(live + [0] * (2 * WIDTH - len(live))))
        expected = world.run(chunks).logits_RV
        for graph, out in graphs:
            graph.replay()
            torch.testing.assert_close(out.logits_RV[: len(live)], expected, atol=1e-3, rtol=1e-3)
