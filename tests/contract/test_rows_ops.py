"""Rows 21-24, 28, 48, 50-52, 54-61, 63, 73-76 and 103 of the seed suite: slots, indices and selections."""

import pytest
import torch

from backends.deepseek_v4.indexer import select_topk
from backends.deepseek_v4.ops.compressed_slots import compressed_slots
from backends.deepseek_v4.ops.dense_indices import dense_indices, dense_local_indices, dense_width
from backends.deepseek_v4.ops.gather_slots import gather_slots
from backends.deepseek_v4.ops.indexer_plan import indexer_max_len, indexer_plan
from backends.deepseek_v4.ops.page_lookup import expand_requests, mask_requests
from backends.deepseek_v4.ops.prefill_chunks import PrefillChunk, chunk_rows, prefill_chunks
from backends.deepseek_v4.ops.slot_mapping import mask_slots, slot_mapping
from backends.deepseek_v4.ops.topk_slots import topk_slots
from backends.deepseek_v4.ops.window_indices import window_indices
from specdec.errors import ConfigError, MetadataError


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def valid(*flags: int) -> torch.Tensor:
    return torch.tensor(flags, dtype=torch.bool)


TWO_BY_TWO = ints([[10, 11], [20, 21]])
LAST_MISSING = ints([[10, 11], [20, -1]])


def test_row_21_group_slot_mapping_consumes_compact_base_offsets():
    slots = slot_mapping(ints([128, 129, 192, 64]), ints([0, 0, 1, 1]), TWO_BY_TWO, ints([2, 1]), 64)
    assert slots.tolist() == [640, 641, -1, 1280]


def test_row_22_group_slot_mapping_expands_per_request_indices():
    slots = slot_mapping(ints([0, 1, 2, 64, 65, 66]), ints([0, 1]), TWO_BY_TWO, ints([0, 1]), 64)
    assert slots.tolist() == [640, 641, 642, 1280, 1281, 1282]
    assert slot_mapping(ints([0, 1, 2, 3]), ints([0, 1]), TWO_BY_TWO, None, 2).tolist() == [20, 21, 42, 43]
    for num_reqs in (2, 6, 0):
        with pytest.raises(MetadataError, match="incompatible shape for 5 packed tokens"):
            slot_mapping(ints([0] * 5), ints([0] * num_reqs), TWO_BY_TWO, None, 64)


def test_row_23_group_slot_mapping_from_raw():
    slots = slot_mapping(ints([0, 63, 64, 9, 10]), ints([0, 0, 0, 1, 1]), LAST_MISSING, None, 64)
    assert slots.tolist() == [640, 703, 704, 1289, 1290]
    slots = slot_mapping(ints([0, 255, 256, 511]), ints([0, 0, 0, 1]), LAST_MISSING, None, 64, 4)
    assert slots.tolist() == [640, 703, 704, -1]
    slots = slot_mapping(ints([0, 1, 2, 0, 1]), ints([0, 0, 0, 1, 1]), TWO_BY_TWO, None, 2)
    assert slots.tolist() == [20, 21, 22, 40, 41]
    for sizes in ((0, 1), (64, 0), (-1, 1)):
        with pytest.raises(ConfigError, match="at least 1"):
            slot_mapping(ints([0]), ints([0]), TWO_BY_TWO, None, *sizes)


def test_row_24_slot_mapping_masks_invalid_tokens():
    assert mask_slots(ints([10, 20, -1, 40]), valid(1, 0, 1, 0), capacity=99).tolist() == [10, -1, -1, -1]
    masked = mask_slots(ints([1, 2, 3, 4, 5, 6]), valid(1, 0), capacity=99)
    assert masked.tolist() == [1, 2, 3, -1, -1, -1]
    assert mask_slots(ints([-3, -1, 0, 7, 8, 99]), None, capacity=8).tolist() == [-1, -1, 0, 7, -1, -1]
    masked = mask_slots(ints([0, 1, 2, 9, -1, 3]), valid(1, 0, 1, 1, 1, 0), capacity=8)
    assert masked.tolist() == [0, -1, 2, -1, -1, -1]


def test_row_28_metadata_maps_compressed_slots():
    first = ints([0, 0, 0])
    assert compressed_slots(ints([3, 7, 127]), first, TWO_BY_TWO, 4, 64).tolist() == [640, 641, 671]
    masked = mask_requests(first, valid(1, 0, 1))
    assert compressed_slots(ints([3, 7, 127]), masked, TWO_BY_TWO, 4, 64).tolist() == [640, -1, 671]
    assert compressed_slots(ints([255, 256, 511]), first, ints([[5, 6]]), 4, 64).tolist() == [383, -1, 447]
    table = ints([[20, 21], [30, -1]])
    slots = compressed_slots(ints([255, 256, 511, 2560, 4]), ints([0, 0, 0, 1, 1]), table, 4, 64)
    assert slots.tolist() == [1343, -1, 1407, -1, -1]
    slots = compressed_slots(ints([297, 298, 299, 8, 9]), ints([0, 0, 0, 1, 1]), table, 4, 64)
    assert slots.tolist() == [-1, -1, 1354, -1, -1]
    table = ints([[10, 11, 12], [20, 21, 22]])
    slots = compressed_slots(ints([5, 6, 7, 4, 5]), ints([0, 0, 0, 1, 1]), table, 4, 4)
    assert slots.tolist() == [-1, -1, 41, -1, -1]


def test_row_48_decode_maps_compressed_slots_batched():
    indices, lens = topk_slots(ints([[1, 65, 3, -1], [0, -1, -1, -1]]), ints([0, 1]), TWO_BY_TWO, 64)
    assert indices.tolist() == [[641, 705, 643, -1], [1280, -1, -1, -1]] and lens.tolist() == [3, 1]
    indices, lens = topk_slots(ints([[0, 1, -1, 5]]), ints([0]), TWO_BY_TWO[:1], 4)
    assert indices.tolist() == [[40, 41, 45, -1]] and lens.tolist() == [3]
    table = ints([[10, 11, 12, 13], [20, 21, 22, 23]])
    width = dense_width(1024, 128)
    first = dense_indices(ints([255, 128]), ints([0, 1]), table, 128, 64, width)
    again = dense_indices(ints([255, 128]), ints([0, 1]), table, 128, 64, width)
    assert width == 128 and first[0].shape == (2, 128)
    assert first[0][:, :3].tolist() == [[640, 641, -1], [1280, -1, -1]] and first[1].tolist() == [2, 1]
    assert (first[0][:, 2:] == -1).all()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_row_50_decode_masks_padding_tokens():
    reqs = mask_requests(ints([0, 1]), valid(1, 0))
    table = ints([[10, 11, 12, 13], [20, 21, 22, 23]])
    indices, lens = topk_slots(ints([[1, 65, 3, -1], [0, 5, 6, 7]]), reqs, table, 64)
    assert lens.tolist() == [3, 0] and indices[1].tolist() == [-1] * 4
    indices, lens = dense_indices(ints([255, 128]), reqs, table, 128, 64, 128)
    assert lens.tolist() == [2, 0] and (indices[1] == -1).all()
    indices, lens = window_indices(ints([69, 2]), reqs, TWO_BY_TWO, None, 4, 64)
    assert indices.tolist() == [[706, 707, 708, 709], [-1] * 4] and lens.tolist() == [4, 0]


def test_row_51_topk_masks_invalid_request_before_indexing():
    reqs = mask_requests(ints([0, 99]), valid(1, 0))
    indices, lens = topk_slots(ints([[0, 4], [0, 1]]), reqs, ints([[10]]), 4)
    assert indices.tolist() == [[40, -1], [-1, -1]] and lens.tolist() == [1, 0]
    indices, lens = topk_slots(ints([[0, 1]]), ints([99]), ints([[10]]), 4)
    assert indices.tolist() == [[-1, -1]] and lens.tolist() == [0]
    indices, lens = topk_slots(ints([[0, 70]]), ints([0]), ints([[5, -1]]), 64)
    assert indices.tolist() == [[320, -1]] and lens.tolist() == [1]


def test_row_52_prefill_local_compressed_indices():
    indices, lens = dense_local_indices(ints([0, 127, 128, 255]), 128, 128)
    assert indices.shape == (4, 128) and lens.tolist() == [0, 1, 1, 2]
    assert indices[:, :3].tolist() == [[-1, -1, -1], [0, -1, -1], [0, -1, -1], [0, 1, -1]]
    fewer, fewer_lens = dense_local_indices(ints([255]), 128, 128)
    assert fewer[0, :3].tolist() == [0, 1, -1] and fewer_lens.tolist() == [2]
    assert indices[0].max() == -1


def test_row_54_indexer_plan_masks_padding_tokens():
    table = ints([[10, 11], [20, 21], [30, 31]])
    reqs = mask_requests(ints([0, 1, 2]), valid(1, 0, 1))
    plan = indexer_plan(ints([7, 11, 3]), reqs, table, 4, 4, 8)
    assert plan.context_lens_T1.flatten().tolist() == [2, 0, 1]
    assert plan.pages_TM.tolist() == [[10, 11], [0, 0], [30, 31]]


def test_row_55_indexer_plan_accepts_a_sliced_mask():
    reqs = mask_requests(ints([0, 1]), valid(1, 1, 0, 1)[2:])
    plan = indexer_plan(ints([7, 7]), reqs, ints([[10], [20]]), 4, 4, 4)
    assert plan.context_lens_T1.tolist() == [[0], [2]] and plan.pages_TM.tolist() == [[0], [20]]


def test_row_56_indexer_schedule_reads_the_lens_of_the_plan():
    """The lengths that a schedule is made from are those that can be read: they end at the first missing page."""
    plan = indexer_plan(ints([63, 63, 63]), ints([0, 1, 2]), ints([[7, 8], [9, -1], [-1, 9]]), 4, 4, 8)
    assert plan.context_lens_T1.dtype == torch.int32 and plan.context_lens_T1.tolist() == [[8], [4], [0]]


def test_row_57_indexer_plan_batches_metadata():
    table = ints([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])
    max_len = indexer_max_len(4, ratio=4, rows_per_page=4)
    plan = indexer_plan(ints([15, 7, 3]), mask_requests(ints([0, 1, 2]), valid(1, 0, 1)), table, 4, 4, max_len)
    assert (plan.max_blocks, plan.max_context_len) == (4, 16)
    assert plan.context_lens_T1.tolist() == [[4], [0], [1]]
    assert plan.pages_TM.tolist() == [[10, 11, 12, 13], [0, 0, 0, 0], [30, 31, 32, 33]]


def test_row_58_indexer_max_len_uses_context_or_table():
    assert indexer_max_len(257, ratio=4, rows_per_page=64, max_context=4096) == 1024
    assert indexer_max_len(257, ratio=4, rows_per_page=64) == 16448


def piece(reqs: range, queries: range, num_rows: int) -> PrefillChunk:
    """A chunk of the first group of a pass, where query rows and packed tokens are counted alike."""
    return PrefillChunk(
        req_start=reqs.start,
        req_end=reqs.stop,
        query_start=queries.start,
        query_end=queries.stop,
        token_start=queries.start,
        token_end=queries.stop,
        num_rows=num_rows,
        skip_gather=False,
    )


def spans(chunk: PrefillChunk) -> tuple[tuple[int, int], ...]:
    return (
        (chunk.req_start, chunk.req_end),
        (chunk.query_start, chunk.query_end),
        (chunk.token_start, chunk.token_end),
    )


def test_row_59_indexer_prefill_chunks():
    chunks = prefill_chunks([16], [6], ratio=4, workspace_rows=640, max_logits_bytes=32)
    pieces = [((0, 1), (i, i + 2), (i, i + 2)) for i in (0, 2, 4)]
    assert [spans(chunk) for chunk in chunks] == pieces
    assert [chunk.skip_gather for chunk in chunks] == [False, True, True]
    (chunk,) = prefill_chunks([16, 8], [2, 2], ratio=4, workspace_rows=640, max_logits_bytes=128)
    assert spans(chunk) == ((0, 2), (0, 4), (0, 4)) and not chunk.skip_gather


def test_row_60_indexer_prefill_gather_plan():
    seq_lens, query_lens = [16, 8], [4, 2]
    chunk = piece(range(2), range(1, 5), 6)
    rows = chunk_rows(chunk, seq_lens, query_lens, ratio=4)
    assert rows.starts_Q.tolist() == [0, 0, 0, 4] and rows.ends_Q.tolist() == [3, 3, 4, 5]
    assert rows.lens_Q.tolist() == [3, 3, 4, 1] and rows.max_len == 4
    slots = gather_slots(ints([[10], [20]]), None, rows.cumulative_R1, 4, chunk.num_rows)
    assert slots.tolist() == [40, 41, 42, 43, 80, 81]


def test_row_61_indexer_prefill_builds_the_whole_plan():
    seq_lens, query_lens = [16, 8], [4, 2]
    (chunk,) = prefill_chunks(seq_lens, query_lens, ratio=4, workspace_rows=640, max_logits_bytes=1 << 20)
    assert spans(chunk) == ((0, 2), (0, 6), (0, 6)) and (chunk.num_rows, chunk.skip_gather) == (6, False)
    rows = chunk_rows(chunk, seq_lens, query_lens, ratio=4)
    assert rows.cumulative_R1.tolist() == [0, 4, 6]
    assert rows.starts_Q.tolist() == [0, 0, 0, 0, 4, 4] and rows.ends_Q.tolist() == [3, 3, 3, 4, 5, 6]
    assert rows.lens_Q.tolist() == [3, 3, 3, 4, 1, 2] and rows.max_len == 4
    again = prefill_chunks(seq_lens, query_lens, ratio=4, workspace_rows=640, max_logits_bytes=1 << 20)
    assert again == (chunk,)


def test_row_63_topk_results_do_not_depend_on_earlier_calls():
    """The seed reuses a scratch that grows with 2, 1 and 4 rows; ours are values, so earlier results stand."""
    rows = ints([[2, 0, 1]])
    results = [topk_slots(rows.expand(n, 3) + n, ints([0] * n), ints([[5, 6]]), 4)[0] for n in (2, 1, 4)]
    assert [r.shape for r in results] == [(2, 3), (1, 3), (4, 3)]
    for n, result in zip((2, 1, 4), results, strict=True):
        assert result.tolist() == [[20 + n + j for j in (2, 0, 1)]] * n


def test_row_73_selection_matches_torch_topk_as_sets():
    scores, lens, k = torch.randn(4, 40), [0, 3, 17, 33], 8
    chosen = select_topk(scores, k, torch.arange(40) < torch.tensor(lens).unsqueeze(1))
    assert chosen.shape == (4, k)
    for row, length, got in zip(scores, lens, chosen.tolist(), strict=True):
        want = set(row[:length].topk(min(k, length)).indices.tolist())
        assert set(got) - {-1} == want and got.count(-1) == k - len(want)
        assert got[len(want) :] == [-1] * (k - len(want))


def test_row_74_selection_runs_on_cpu_scores():
    """The seed refuses them; ours is the reference, and equal scores are taken from the lowest index on."""
    scores = torch.tensor([[0.0, 2.0, 0.0, 0.0]])
    assert select_topk(scores, 2, torch.ones(1, 4, dtype=torch.bool)).tolist() == [[0, 1]]


@pytest.mark.parametrize("k", [1, 4, 7, 512])
def test_row_75_selection_takes_any_width(k):
    """The seed's kernel supports 512, 1024 and 2048 only."""
    chosen = select_topk(torch.arange(6.0).unsqueeze(0), k, torch.ones(1, 6, dtype=torch.bool))
    kept = min(k, 6)
    assert chosen.tolist() == [list(range(6 - kept, 6)) + [-1] * (k - kept)]


def test_row_76_selection_is_relative_to_the_rows_of_the_request():
    rows = chunk_rows(piece(range(2), range(3, 5), 6), [12, 12], [4, 4], ratio=4)
    scores = torch.randn(2, 6)
    for _ in range(2):
        for q in range(2):
            start, length = rows.starts_Q[q].item(), rows.lens_Q[q].item()
            visible = torch.arange(3) < length
            chosen = select_topk(scores[q, start : start + 3], 4, visible)
            assert chosen.tolist() == list(range(length)) + [-1] * (4 - length)
    assert rows.lens_Q.tolist() == [3, 2]


def test_row_103_the_limit_of_indexer_logits_is_in_bytes():
    """The seed converts an option in MiB once; here the argument names its unit and is used as it is."""
    limit = 7 << 20
    chunks = prefill_chunks([4096], [4096], ratio=4, workspace_rows=1024, max_logits_bytes=limit)
    queries = [chunk.query_end - chunk.query_start for chunk in chunks]
    assert queries == [1792, 1792, 512]
    assert all(4 * 1024 * num <= limit for num in queries) and 4 * 1024 * 1793 > limit


def test_request_vectors_expand_by_whole_repeats_only():
    assert expand_requests(ints([3, 4]), 6).tolist() == [3, 3, 3, 4, 4, 4]
    assert mask_requests(ints([0, 0, 1, 1]), valid(1, 0)).tolist() == [0, 0, -1, -1]
