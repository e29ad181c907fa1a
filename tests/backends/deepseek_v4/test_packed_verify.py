"""A packed verify pass equals single steps, and rejected tokens leave no trace."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import SWA_GROUP, AttentionKind, compressed_group, state_group
from backends.deepseek_v4.ops.range_slots import history_slots, range_slots

WIDTH = 4
VALUES = {"atol": 2e-5, "rtol": 1e-4}


def wrong(tokens):
    return [(t + 1) % 97 for t in tokens]


@pytest.mark.parametrize("boundary", [4, 64, 128, 256])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_every_accept_length_over_a_boundary(world, text, boundary, before):
    start = boundary - before
    prompts = [(row, 0, text[:start]) for row in range(WIDTH)]
    world.run(prompts, num_prefill_reqs=WIDTH)
    # Row r accepts r + 1 tokens of its verify pass; the rest is wrong and must not be seen afterwards.
    chunks = []
    for row in range(WIDTH):
        accepted = row + 1
        chunks.append((row, start, text[start : start + accepted] + wrong(text[start + accepted : start + WIDTH])))
    first = world.run(chunks).logits_RV.view(WIDTH, WIDTH, -1)
    again = [(row, start + row + 1, text[start + row + 1 : start + row + 1 + WIDTH]) for row in range(WIDTH)]
    second = world.run(again).logits_RV.view(WIDTH, WIDTH, -1)
    dense = world.dense_logits(text[: start + 2 * WIDTH + 1])
    for row in range(WIDTH):
        accepted = row + 1
        torch.testing.assert_close(first[row, :accepted], dense[start : start + accepted], **VALUES)
        expected = dense[start + accepted : start + accepted + WIDTH]
        torch.testing.assert_close(second[row], expected, **VALUES)
        assert second[row].argmax(1).equal(expected.argmax(1))


@pytest.mark.parametrize("start", [126, 62])
def test_an_exact_draft_is_accepted_whole(world, text, start):
    world.run([(0, 0, text[:start]), (1, 0, text[:start])], num_prefill_reqs=2)
    greedy = [text[start]]
    for i in range(8):
        logits = world.run([(0, start + i, greedy[-1:])]).logits_RV
        greedy.append(int(logits.argmax()))
    packed = world.run([(1, start, greedy[:-1])]).logits_RV
    assert packed.argmax(1).tolist() == greedy[1:]


def cached_rows(world, length, row):
    """Every row that later queries of a request can still read, by group and layer, on their committed positions."""
    layout_tables = world.tables_of(row, length)
    pool, spec = world.target.pool, world.target.backend.spec
    start = torch.tensor([length])
    for layer, kind in enumerate(pool.kinds):
        window = range(-min(length, spec.window_tokens - 1), 0)
        slots = range_slots(layout_tables[SWA_GROUP], None, start, window, 64)
        yield pool.swa_rows.read(pool.swa(layer), slots)
        if not kind.compresses:
            continue
        group = state_group(kind)
        window = range(-min(length, kind.state_window - 1), 0)
        slots = range_slots(layout_tables[group], None, start, window, spec.rows_per_page(group))
        yield pool.state_rows(layer).read(pool.state(layer), slots)
        num_rows = length // kind.ratio
        group = compressed_group(kind)
        columns = spec.groups[group].pages_for(length)
        slots = history_slots(layout_tables[group], None, columns, spec.rows_per_page(group))[:, :num_rows]
        yield pool.compressed_rows(layer).read(pool.compressed(layer), slots)
        if kind is AttentionKind.CSA:
            yield pool.index_rows(layer).read(pool.index_keys(layer), slots)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.sampled_from([1, 3, 60, 121, 250]),
    rounds=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8),
)
def test_invariant_4_committed_rows_equal_those_of_a_fresh_prompt(world_of, text, start, rounds):
    world, fresh = world_of(max_context=320), world_of(max_context=320)
    world.run([(0, 0, text[:start])], num_prefill_reqs=1)
    length = start
    for width, accepted in rounds:
        accepted = min(width, accepted)
        tokens = text[length : length + accepted] + wrong(text[length + accepted : length + width])
        world.run([(0, length, tokens)])
        length += accepted
    fresh.run([(0, 0, text[:length])], num_prefill_reqs=1)
    for one, other in zip(cached_rows(world, length, 0), cached_rows(fresh, length, 0), strict=True):
        torch.testing.assert_close(one, other, **VALUES)


def test_mixed_pass_equals_its_parts(world, text):
    world.run([(1, 0, text[:126]), (2, 0, text[50:113])], num_prefill_reqs=2)
    mixed = world.run(
        [(0, 0, text[:150]), (3, 0, text[:5]), (1, 126, text[126:129]), (2, 63, text[113:116])], num_prefill_reqs=2
    ).logits_RV
    torch.testing.assert_close(mixed[:150], world.dense_logits(text[:150]), **VALUES)
    torch.testing.assert_close(mixed[150:155], world.dense_logits(text[:5]), **VALUES)
    torch.testing.assert_close(mixed[155:158], world.dense_logits(text[:129])[126:], **VALUES)
    torch.testing.assert_close(mixed[158:], world.dense_logits(text[50:116])[63:], **VALUES)


def test_ragged_decode_pass_equals_its_parts(world, text):
    starts = [126, 7, 63]
    world.run([(row, 0, text[:p]) for row, p in enumerate(starts)], num_prefill_reqs=3)
    widths = [1, 5, 2]
    chunks = [(row, p, text[p : p + n]) for row, (p, n) in enumerate(zip(starts, widths, strict=True))]
    logits = world.run(chunks).logits_RV
    dense = world.dense_logits(text[:140])
    expected = torch.cat([dense[p : p + n] for p, n in zip(starts, widths, strict=True)])
    torch.testing.assert_close(logits, expected, **VALUES)
