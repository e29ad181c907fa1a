"""Rows 6 to 8, 40 to 46 and 49 of the contract: captured passes and padding."""

import pytest
import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.graph_state import GraphStateInputs, pad_tables
from backends.deepseek_v4.passes import PassConfig
from backends.deepseek_v4.plan_types import PlanSpec
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.segments import AttentionInput
from backends.nextn.plan import plan_step
from specdec.api import GroupTable
from specdec.layout import ForwardMode

SWA = "v4.swa_kv"
HEADS, DIM, TOPK = 2, 64, 4


def test_row_06_padded_table_rows_hold_no_page():
    table = GroupTable(pages_BC=torch.tensor([[5, -1]], dtype=torch.int32))
    assert pad_tables({"g": table}, 3)["g"].pages_BC.tolist() == [[5, -1], [-1, -1], [-1, -1]]


def graph_backend(small, **fields) -> DeepseekV4AttentionBackend:
    backend = small.backend(**fields)
    columns = {s.group_id: 3 if s.group_id == SWA else 12 for s in backend.pool.layout.group_specs()}
    backend.init_cuda_graph_state(GraphStateInputs(max_batch=4, max_tokens_per_request=4, columns=columns))
    return backend


def test_row_07_an_idle_replay_keeps_its_live_count_with_padded_tables(small):
    backend = graph_backend(small, ratios=(0,))
    backend.init_forward_metadata_capture_cuda_graph(small.window([1, 1, 1, 1], [[1], [2], [3], [4]], [0] * 4))
    table = GroupTable(pages_BC=torch.full((4, 1), -1, dtype=torch.int32), base_B=torch.zeros(4, dtype=torch.int32))
    idle = ForwardInputs(mode=ForwardMode.IDLE, rows=(), seq_lens=(), tables={SWA: table}, num_tokens=4)
    buffers = backend.init_forward_metadata_replay_cuda_graph(idle, 4)
    assert buffers.key.num_reqs == 4 and not buffers.valid_T.any()
    assert buffers.tables[SWA].pages_BC.eq(-1).all()


def test_row_08_a_draft_replay_gets_padded_tables_offsets_and_its_own_lengths(small):
    backend = graph_backend(small, ratios=(0,))
    backend.init_forward_metadata_capture_cuda_graph(small.window([1] * 4, [[1], [2], [3], [4]], [0] * 4))
    live = small.window([1, 1], [[7], [8]], [1, 2], num_tokens=4)
    buffers = backend.init_forward_metadata_replay_cuda_graph(live, 4)
    assert buffers.tables[SWA].pages_BC[:, :1].tolist() == [[7], [8], [-1], [-1]]
    assert buffers.tables[SWA].base_B.tolist() == [1, 2, 0, 0]
    assert buffers.seq_lens_B.tolist() == [1, 1, 1, 1]
    assert buffers.plan.mode is ForwardMode.DECODE


def test_row_40_a_replayed_table_keeps_its_columns_and_is_padded_beyond(small):
    backend = graph_backend(small, ratios=(0,))
    backend.init_forward_metadata_capture_cuda_graph(small.window([1, 1], [[1], [2]], [0, 0]))
    buffers = backend.init_forward_metadata_replay_cuda_graph(small.window([70, 3], [[10, 11], [20, -1]], [0, 0]), 2)
    assert buffers.tables[SWA].pages_BC.tolist() == [[10, 11, -1], [20, -1, -1]]


def test_row_41_a_replay_without_a_token_count_is_plain_decode(small):
    backend = graph_backend(small, ratios=(0,))
    for num_tokens in (8, None):
        backend.init_forward_metadata_capture_cuda_graph(
            small.window([4, 4], [[1], [2]], [0, 0], num_tokens=num_tokens)
        )
    buffers = backend.init_forward_metadata_replay_cuda_graph(small.window([70, 3], [[10, 11], [20, -1]], [0, 0]), 2)
    assert buffers.query_lens_B.tolist() == [1, 1]
    assert buffers.plan.num_tokens == 2


def test_row_42_a_replay_marks_padding_tokens_invalid(small):
    backend = graph_backend(small, ratios=(0,))
    backend.init_forward_metadata_capture_cuda_graph(small.window([1] * 4, [[1], [2], [3], [4]], [0] * 4))
    buffers = backend.init_forward_metadata_replay_cuda_graph(
        small.window([70, 3], [[10, 11], [20, -1]], [0, 0], num_tokens=4), 4
    )
    assert buffers.valid_T.tolist() == [True, True, False, False]
    assert buffers.plan.num_tokens == 4


def test_row_43_packed_capture_and_replay(small):
    backend = graph_backend(small, ratios=(0,))
    pages = [[1], [2], [3], [4]]
    buffers = backend.init_forward_metadata_capture_cuda_graph(small.window([1] * 4, pages, [0] * 4, num_tokens=16))
    assert buffers.seq_lens_B.tolist() == [4, 4, 4, 4]
    assert buffers.query_lens_B.tolist() == [4, 4, 4, 4]
    assert buffers.query_starts_B1.tolist() == [0, 4, 8, 12, 16]
    assert buffers.token_reqs_T.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert buffers.plan.num_tokens == 16
    live = small.window([70, 9], [[10, 11], [20, -1]], [0, 0], num_tokens=16)
    buffers = backend.init_forward_metadata_replay_cuda_graph(live, 4)
    assert buffers.valid_T.tolist() == [True] * 8 + [False] * 8
    assert buffers.plan.positions_T[:8].tolist() == [66, 67, 68, 69, 5, 6, 7, 8]


def test_row_44_a_captured_draft_step_advances_in_place(small):
    backend = graph_backend(small, ratios=(0,))
    pages = [[1], [2], [3], [4]]
    capture = small.window([1] * 4, pages, [0] * 4, num_tokens=16)
    first = backend.init_forward_metadata_capture_cuda_graph(capture)
    live = small.window([70, 4], [[10, 11], [20, -1]], [0, 0], num_tokens=16)
    buffers = backend.init_forward_metadata_replay_cuda_graph(live, 4)
    step = plan_step(torch.tensor([71, 4, 2, 2]), buffers.tables[SWA], backend.spec)
    assert step.num_tokens == 4
    assert buffers.valid_T[::4].tolist() == [True, True, False, False]
    assert step.positions_T[:2].tolist() == [70, 3]
    assert step.write_slots[SWA].tolist() == [11 * 64 + 6, 20 * 64 + 3, -1, -1]
    address = first.plan.segments[0].window_slots_GK.data_ptr()
    again = backend.init_forward_metadata_capture_cuda_graph(capture)
    assert again is first and again.plan.segments[0].window_slots_GK.data_ptr() == address


def test_row_45_an_eager_request_after_a_captured_pass_is_planned_for_itself(small):
    backend = graph_backend(small, ratios=(0,))
    backend.init_forward_metadata_capture_cuda_graph(small.window([1] * 4, [[1], [2], [3], [4]], [0] * 4))
    metadata = backend.init_forward_metadata(small.window([3], [[5]], [0]))
    assert metadata.layout.token_reqs == (0,)
    assert metadata.plan.num_tokens == 1 and metadata.plan.valid_T is None


def test_row_46_a_plan_does_not_depend_on_earlier_plans(small):
    backend = small.backend(ratios=(0,))
    alone = backend.init_forward_metadata(small.window([3], [[5]], [0])).plan
    backend.init_forward_metadata(small.window([70, 80], [[10, 11], [20, 21]], [0, 0], num_tokens=4))
    after = backend.init_forward_metadata(small.window([3], [[5]], [0])).plan
    assert after.num_tokens == alone.num_tokens == 1
    assert after.segments[0].window_slots_GK.equal(alone.segments[0].window_slots_GK)


@pytest.mark.gpu
def test_row_49_captured_passes_recompute_their_indices(small):
    device = torch.device("cuda")
    layout = CacheLayout(
        compress_ratios=(128,), sliding_window=16, head_dim=DIM, rope_dim=16, cache_dtype="fp32", indexer_dtype="plain"
    )
    specs = layout.group_specs()
    spec = PlanSpec(
        groups={s.group_id: s for s in specs},
        kinds=layout.compressing_kinds,
        window_tokens=16,
        num_heads=HEADS,
        index_topk=TOPK,
        max_context=512,
    )
    pool = CachePool(layout, {s.group_id: 70 for s in specs}, device=device)
    backend = small.filled(DeepseekV4AttentionBackend(spec, pool, PassConfig(max_context=512)))
    columns = {s.group_id: 70 for s in specs}
    backend.init_cuda_graph_state(GraphStateInputs(max_batch=2, max_tokens_per_request=1, columns=columns))
    q_THD, sinks_H = torch.randn(1, HEADS, DIM, device=device), torch.zeros(HEADS, device=device)

    def inputs(length):
        tables = {
            g: GroupTable(pages_BC=t.pages_BC.to(device), base_B=None if t.base_B is None else t.base_B.to(device))
            for g, t in small.tables(specs, [length]).items()
        }
        return small.decode([length], tables=tables)

    def attend(plan):
        return backend.forward_decode(AttentionInput(plan=plan, layer=0, q_THD=q_THD, sinks_H=sinks_H, scale=DIM**-0.5))

    graphs = []
    for length in (100, 300):
        # The second capture of the same key must record its own reads, not the results of the first.
        buffers = backend.init_forward_metadata_capture_cuda_graph(inputs(length))
        attend(buffers.plan)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attend(buffers.plan)
        graphs.append((graph, out))
    for length in (130, 400, 257):
        buffers = backend.init_forward_metadata_replay_cuda_graph(inputs(length), 1)
        expected = attend(backend.init_forward_metadata(inputs(length)).plan)
        for graph, out in graphs:
            graph.replay()
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
