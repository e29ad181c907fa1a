"""Under batch_invariant a row's result and its cache bytes do not depend on what else is in the pass."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from specdec.api import LAST_LAYER
from specdec.errors import CapacityError

KINDS = [("fp32", "plain", torch.float32), ("bf16", "plain", torch.bfloat16), ("fp32", "plain", torch.bfloat16)]


def invariant_world(world_of, kind):
    cache_dtype, indexer_dtype, dtype = kind
    return world_of(
        batch_invariant=True, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype, dtype=dtype, max_context=320
    )


PREFIX, END = 117, 134


def feed(world, row, tokens, sizes, start=0):
    """Logits and streams of a text from ``start`` on, fed alone in pieces."""
    i, parts = 0, []
    while start < len(tokens):
        piece = tokens[start : start + sizes[i % len(sizes)]]
        parts.append(world.run([(row, start, piece)], hidden_layers=(LAST_LAYER,)))
        start, i = start + len(piece), i + 1
    return torch.cat([p.logits_RV for p in parts]), torch.cat([p.hidden_TD for p in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_give_the_same_bits(world_of, text, kind):
    world = invariant_world(world_of, kind)
    results = []
    for row, sizes in enumerate([[1], [3], [5, 2, 8, 1]]):
        feed(world, row, text[:PREFIX], [8])
        results.append(feed(world, row, text[:END], sizes, start=PREFIX))
    for logits, hidden in results[1:]:
        assert logits.equal(results[0][0])
        assert hidden.equal(results[0][1])


@pytest.mark.parametrize("kind", KINDS)
def test_company_in_the_pass_changes_no_bit(world_of, text, kind):
    alone, shared = invariant_world(world_of, kind), invariant_world(world_of, kind)
    tokens, other, third = text[:END], text[200:400], text[400:500]
    feed(alone, 0, tokens[:PREFIX], [8])
    expected, _ = feed(alone, 0, tokens, [3], start=PREFIX)
    for row, prompt in ((0, tokens), (1, other)):
        feed(shared, row, prompt[:PREFIX], [8])
    for start in range(PREFIX, END, 3):
        piece = tokens[start : start + 3]
        chunks = [(1, start, other[start : start + 4]), (0, start, piece)]
        if start % 2:
            step = start - PREFIX
            chunks.append((3, step // 3, third[step // 3 : step // 3 + 1]))
        logits = shared.run(chunks).logits_RV[4 : 4 + len(piece)]
        assert logits.equal(expected[start - PREFIX : start - PREFIX + len(piece)]), f"position {start}"


def test_a_packed_verify_pass_leaves_the_same_bytes_as_single_steps(world_of, text):
    kind = KINDS[0]
    packed, single = invariant_world(world_of, kind), invariant_world(world_of, kind)
    for world, size in ((packed, 4), (single, 1)):
        feed(world, 0, text[:PREFIX], [8])
        feed(world, 0, text[:END], [size], start=PREFIX)
    for one, other in zip(all_buffers(packed), all_buffers(single), strict=True):
        # Page 0 belongs to nobody: padding writes there.
        assert one[1:].view(torch.uint8).equal(other[1:].view(torch.uint8))


def all_buffers(world):
    pool = world.target.pool
    for layer, kind in enumerate(pool.kinds):
        yield pool.swa(layer)
        if kind.compresses:
            yield pool.compressed(layer)
            yield pool.state(layer)
        if kind is AttentionKind.CSA:
            yield pool.index_keys(layer)
            yield pool.index_state(layer)


def test_invariant_passes_equal_dense(world_of, text):
    world = invariant_world(world_of, KINDS[0])
    logits, _ = feed(world, 0, text[:150], [8])
    torch.testing.assert_close(logits, world.dense_logits(text[:150]), atol=2e-5, rtol=1e-4)


def test_a_longer_pass_is_refused_by_name(world_of, text):
    world = invariant_world(world_of, KINDS[0])
    with pytest.raises(CapacityError, match="engine.fixed_rows=8 rows, got 9"):
        world.run([(0, 0, text[:9])])
