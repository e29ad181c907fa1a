"""A paged pass gives what a whole-sequence pass gives, however the tokens are cut and wherever pages lie."""

import dataclasses

import pytest
import torch

from specdec.api import LAST_LAYER, GroupTable
from specdec.errors import MetadataError


def cut(tokens, sizes):
    """Consecutive (start, tokens) pieces of the given sizes, repeated until the text ends."""
    start, i = 0, 0
    while start < len(tokens):
        size = sizes[i % len(sizes)]
        yield start, tokens[start : start + size]
        start, i = start + size, i + 1


def paged_logits(world, tokens, sizes, *, prefill):
    parts = [
        world.run([(1, start, piece)], num_prefill_reqs=int(prefill)).logits_RV for start, piece in cut(tokens, sizes)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 127, 128, 129, 257, 300])
def test_paged_prompt_equals_dense_in_one_piece(world, text, length):
    tokens = text[:length]
    torch.testing.assert_close(
        paged_logits(world, tokens, [length], prefill=True), world.dense_logits(tokens), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("sizes", [[1], [2], [3], [4], [5, 1], [16], [17], [63], [64], [129], [7, 130, 1]])
def test_paged_prompt_equals_dense_in_blocks(world, text, sizes):
    tokens = text[:300]
    prefill = max(sizes) > 8
    torch.testing.assert_close(
        paged_logits(world, tokens, sizes, prefill=prefill), world.dense_logits(tokens), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("caches", [("fp8", "fp8"), ("fp8", "mxfp4"), ("bf16", "plain")])
def test_quantised_caches_stay_close_to_dense(world_of, small_config, text, caches):
    config = dataclasses.replace(small_config, head_dim=128, qk_rope_head_dim=64)
    world = world_of(config=config, cache_dtype=caches[0], indexer_dtype=caches[1])
    tokens = text[:140]
    dense = world.dense_logits(tokens)
    for sizes, prefill in (([140], True), ([100, 3], False)):
        paged = paged_logits(world, tokens, sizes, prefill=prefill)
        similarity = torch.nn.functional.cosine_similarity(paged, dense, dim=1)
        # Single rows may differ more: rounding can change which experts and rows a random model chooses.
        assert similarity.median() > 0.98 and similarity.mean() > 0.95


def test_the_same_pass_twice_changes_nothing(world, text):
    world.run([(0, 0, text[:70])], num_prefill_reqs=1)
    first = world.run([(0, 70, text[70:74])]).logits_RV
    assert world.run([(0, 70, text[70:74])]).logits_RV.equal(first)


def test_hidden_states_are_the_streams_after_the_named_layers(world, text):
    out = world.run([(0, 0, text[:20])], num_prefill_reqs=1, hidden_layers=(LAST_LAYER, 1, LAST_LAYER))
    width = world.dense_streams(text[:20]).flatten(1)
    torch.testing.assert_close(out.hidden_TD[:, : width.shape[1]], width, atol=2e-5, rtol=1e-4)
    assert out.hidden_TD[:, -width.shape[1] :].equal(out.hidden_TD[:, : width.shape[1]])
    assert out.hidden_TD.shape[1] == 3 * width.shape[1]


def test_only_the_wanted_logits_are_returned(world, text):
    chunks = [(0, 0, text[:12])]
    whole = world.run(chunks, num_prefill_reqs=1).logits_RV
    layout = dataclasses.replace(world.layout(chunks, num_prefill_reqs=1), logit_rows=(3, 11))
    out = world.target.forward(layout, torch.tensor(text[:12]), world.tables(layout))
    torch.testing.assert_close(out.logits_RV, whole[[3, 11]])


def test_results_may_be_changed_in_place(world, text):
    out = world.run([(0, 0, text[:3])], hidden_layers=(LAST_LAYER,))
    out.logits_RV.mul_(2.0)
    out.hidden_TD.mul_(2.0)


def test_an_idle_pass_gives_nothing(world):
    out = world.run([])
    assert out.logits_RV.shape == (0, 97)


def test_tables_that_do_not_fit_are_refused(world, text):
    layout = world.layout([(0, 0, text[:5])])
    tables = world.tables(layout)
    tokens_T = torch.tensor(text[:5])
    del tables["v4.c4a.compressed_kv"]
    with pytest.raises(MetadataError, match="missing paged-cache block table of group v4.c4a.compressed_kv"):
        world.target.forward(layout, tokens_T, tables)
    two = world.tables(world.layout([(0, 0, text[:5]), (1, 0, text[:5])]))
    with pytest.raises(MetadataError, match="has 2 rows, the pass has 1 requests"):
        world.target.forward(layout, tokens_T, two)
    swapped = world.tables(layout)
    swapped["v4.swa_kv"] = GroupTable(pages_BC=swapped["v4.swa_kv"].pages_BC)
    with pytest.raises(MetadataError, match="v4.swa_kv needs base offsets"):
        world.target.forward(layout, tokens_T, swapped)
