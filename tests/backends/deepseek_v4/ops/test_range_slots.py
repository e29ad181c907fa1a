"""Range slots are the per-token slot functions, applied to ranges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.ops.range_slots import host, reference
from backends.deepseek_v4.ops.slot_mapping import slot_mapping
from specdec.api import GroupTable

IMPLEMENTATIONS = pytest.mark.parametrize("slots", [reference, host])
SIZES = st.sampled_from([1, 2, 3, 4, 8, 64])


def random_table(seed, num_reqs, num_columns, sliding):
    generator = torch.Generator().manual_seed(seed)
    pages_BC = torch.randint(-1, 50, (num_reqs, num_columns), generator=generator, dtype=torch.int32)
    base_B = torch.randint(0, 4, (num_reqs,), generator=generator, dtype=torch.int32) if sliding else None
    return GroupTable(pages_BC=pages_BC, base_B=base_B)


@IMPLEMENTATIONS
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    num_reqs=st.integers(1, 4),
    num_columns=st.integers(0, 5),
    rows_per_page=SIZES,
    sliding=st.booleans(),
    low=st.integers(-130, 0),
    width=st.integers(1, 20),
)
def test_range_slots_equal_the_slot_map(slots, seed, num_reqs, num_columns, rows_per_page, sliding, low, width):
    table = random_table(seed, num_reqs, num_columns, sliding)
    starts = torch.randint(-5, 300, (num_reqs,), generator=torch.Generator().manual_seed(seed))
    span = range(low, low + width)
    positions = (starts[:, None] + torch.tensor(list(span))).flatten()
    reqs = torch.arange(num_reqs).repeat_interleave(width)
    expected = slot_mapping(positions, reqs, table.pages_BC, table.base_B, rows_per_page)
    expected = torch.where(positions < 0, -1, expected).view(num_reqs, width)
    assert slots.range_slots(table, None, starts, span, rows_per_page).equal(expected)
    order = torch.randperm(num_reqs)
    assert slots.range_slots(table, order, starts[order], span, rows_per_page).equal(expected[order])


@IMPLEMENTATIONS
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), num_columns=st.integers(0, 5), rows_per_page=SIZES)
def test_entry_and_history_slots_equal_the_slot_map(slots, seed, num_columns, rows_per_page):
    table = random_table(seed, 3, num_columns, sliding=False)
    entries = torch.arange(-1, (num_columns + 1) * rows_per_page)
    for b in range(3):
        reqs = torch.full_like(entries, b)
        expected = slot_mapping(entries, reqs, table.pages_BC, None, rows_per_page)
        expected = torch.where(entries < 0, -1, expected)
        assert slots.entry_slots(table, reqs, entries, rows_per_page).equal(expected)
        history = slots.history_slots(table, torch.tensor([b]), num_columns + 1, rows_per_page)[0]
        assert torch.where(history < 0, -1, history).long().equal(expected[1:])
