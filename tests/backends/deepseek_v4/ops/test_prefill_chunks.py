"""Cutting a prompt pass for the indexer: limits, coverage, defects that were corrected."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.ops.prefill_chunks import chunk_rows, prefill_chunks
from specdec.errors import ConfigError, MetadataError


def test_a_group_without_compressed_rows_is_one_piece():
    (chunk,) = prefill_chunks([3, 2], [3, 2], ratio=4, workspace_rows=0, max_logits_bytes=0)
    assert (chunk.req_end, chunk.token_end, chunk.num_rows) == (2, 5, 0)
    rows = chunk_rows(chunk, [3, 2], [3, 2], ratio=4)
    assert rows.lens_Q.tolist() == [0] * 5 and rows.max_len == 0


def test_requests_without_queries_are_left_out():
    assert prefill_chunks([8, 8], [0, 0], ratio=4, workspace_rows=2, max_logits_bytes=64) == ()
    (chunk,) = prefill_chunks([8, 8], [0, 2], ratio=4, workspace_rows=2, max_logits_bytes=64)
    assert (chunk.req_start, chunk.req_end, chunk.token_start) == (1, 2, 0)
    assert prefill_chunks([], [], ratio=4, workspace_rows=2, max_logits_bytes=64) == ()


def test_a_request_that_does_not_fit_is_alone():
    chunks = prefill_chunks([80, 8, 8], [1, 1, 1], ratio=4, workspace_rows=4, max_logits_bytes=1 << 20)
    assert [(c.req_start, c.req_end, c.num_rows) for c in chunks] == [(0, 1, 20), (1, 3, 4)]


def test_lengths_that_contradict_each_other_are_refused():
    for seq_lens, query_lens in (([8], [8, 1]), ([8], [9]), ([8], [-1])):
        with pytest.raises(MetadataError, match="do not fit"):
            prefill_chunks(seq_lens, query_lens, ratio=4, workspace_rows=4, max_logits_bytes=64)
    with pytest.raises(ConfigError, match="ratio"):
        prefill_chunks([8], [8], ratio=0, workspace_rows=4, max_logits_bytes=64)


requests = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6)


@settings(deadline=None, max_examples=100)
@given(requests, st.sampled_from([1, 4, 128]), st.integers(0, 40), st.integers(0, 600))
def test_chunks_cover_every_token_once_within_the_limits(prompts, ratio, workspace_rows, max_logits_bytes):
    seq_lens = [prefix + n for prefix, n in prompts]
    query_lens = [n for _, n in prompts]
    chunks = prefill_chunks(
        seq_lens, query_lens, ratio=ratio, workspace_rows=workspace_rows, max_logits_bytes=max_logits_bytes
    )
    assert [t for c in chunks for t in range(c.token_start, c.token_end)] == list(range(sum(query_lens)))
    for chunk in chunks:
        num_queries = chunk.query_end - chunk.query_start
        assert chunk.num_rows <= workspace_rows or chunk.req_end - chunk.req_start == 1
        assert num_queries == 1 or chunk.num_rows * num_queries * 4 <= max_logits_bytes or chunk.num_rows == 0
        assert chunk.skip_gather == (chunk.query_start > 0)
        assert chunk.num_rows == sum(n // ratio for n in seq_lens[chunk.req_start : chunk.req_end])


@settings(deadline=None, max_examples=60)
@given(requests, st.sampled_from([1, 4]), st.integers(0, 40), st.integers(0, 600))
def test_each_query_sees_the_completed_rows_of_its_own_request(prompts, ratio, workspace_rows, max_logits_bytes):
    seq_lens = [prefix + n for prefix, n in prompts]
    query_lens = [n for _, n in prompts]
    tokens = [(r, prefix + j) for r, (prefix, n) in enumerate(prompts) for j in range(n)]
    for chunk in prefill_chunks(
        seq_lens, query_lens, ratio=ratio, workspace_rows=workspace_rows, max_logits_bytes=max_logits_bytes
    ):
        rows = chunk_rows(chunk, seq_lens, query_lens, ratio=ratio)
        for q, (req, position) in enumerate(tokens[chunk.token_start : chunk.token_end]):
            origin = sum(n // ratio for n in seq_lens[chunk.req_start : req])
            assert rows.starts_Q[q] == origin
            assert rows.ends_Q[q] == origin + (position + 1) // ratio
        assert rows.cumulative_R1[-1] == chunk.num_rows
