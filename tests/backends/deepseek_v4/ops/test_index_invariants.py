"""Properties of the index functions over any tables, against a scalar oracle on Python lists.

The oracle knows one thing: the page of a logical row of a request, or None.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.ops.compressed_slots import compressed_slots, visible_rows
from backends.deepseek_v4.ops.dense_indices import dense_indices
from backends.deepseek_v4.ops.indexer_plan import indexer_plan
from backends.deepseek_v4.ops.range_slots import entry_slots, history_slots, range_slots
from backends.deepseek_v4.ops.slot_mapping import slot_mapping
from backends.deepseek_v4.ops.topk_slots import topk_slots
from backends.deepseek_v4.ops.window_indices import window_indices, window_state_slots
from specdec.api import GroupTable
from specdec.cache.pages import PageAllocator
from specdec.cache.spec import CacheGroupSpec, Retention

FEW = settings(deadline=None, max_examples=80)
NUM_PAGES = 50


class Case:
    """A random table with bases and holes, and random tokens: padding, negative and far positions included."""

    def __init__(self, draw: st.DrawFn, *, sliding: bool) -> None:
        self.rows_per_page = draw(st.sampled_from([1, 2, 4, 7, 64]))
        self.num_reqs = draw(st.integers(0, 4))
        self.num_columns = draw(st.integers(0, 5))
        page = st.integers(-1, NUM_PAGES - 1)
        row = st.lists(page, min_size=self.num_columns, max_size=self.num_columns)
        self.pages = draw(st.lists(row, min_size=self.num_reqs, max_size=self.num_reqs))
        self.base = [draw(st.integers(0, 6)) if sliding else 0 for _ in range(self.num_reqs)]
        self.sliding = sliding
        num_tokens = draw(st.integers(0, 8))
        tokens = st.lists(st.integers(-5, 12 * self.rows_per_page), min_size=num_tokens, max_size=num_tokens)
        reqs = st.lists(st.integers(-1, self.num_reqs + 1), min_size=num_tokens, max_size=num_tokens)
        self.positions, self.reqs = draw(tokens), draw(reqs)
        self.dtype = draw(st.sampled_from([torch.int32, torch.int64]))

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        pages = torch.tensor(self.pages, dtype=torch.int32).view(self.num_reqs, self.num_columns)
        base = torch.tensor(self.base, dtype=torch.int32) if self.sliding else None
        return torch.tensor(self.positions, dtype=self.dtype), torch.tensor(self.reqs, dtype=self.dtype), pages, base

    def slot(self, req: int, row: int) -> int:
        """Slot of a logical row; -1 when there is none."""
        if not 0 <= req < self.num_reqs or row < 0:
            return -1
        column = row // self.rows_per_page - self.base[req]
        if not 0 <= column < self.num_columns or self.pages[req][column] < 0:
            return -1
        return self.pages[req][column] * self.rows_per_page + row % self.rows_per_page

    def is_live(self, token: int) -> bool:
        return 0 <= self.reqs[token] < self.num_reqs and self.positions[token] >= 0


@st.composite
def cases(draw: st.DrawFn, *, sliding: bool | None = None) -> Case:
    return Case(draw, sliding=draw(st.booleans()) if sliding is None else sliding)


@FEW
@given(cases(), st.sampled_from([1, 3, 4, 128]))
def test_slot_mapping_equals_the_oracle(case, stride):
    positions, reqs, pages, base = case.tensors
    got = slot_mapping(positions, reqs, pages, base, case.rows_per_page, stride)
    assert got.dtype == torch.int64
    assert got.tolist() == [case.slot(r, p // stride) for r, p in zip(case.reqs, case.positions, strict=True)]


@FEW
@given(cases(sliding=False), st.sampled_from([1, 4, 128]))
def test_compressed_slots_equal_the_oracle(case, ratio):
    positions, reqs, pages, _ = case.tensors
    want = [
        case.slot(r, p // ratio) if (p + 1) % ratio == 0 else -1 for r, p in zip(case.reqs, case.positions, strict=True)
    ]
    assert compressed_slots(positions, reqs, pages, ratio, case.rows_per_page).tolist() == want


@FEW
@given(cases(), st.integers(1, 9))
def test_window_indices_equal_the_oracle(case, window):
    positions, reqs, pages, base = case.tensors
    indices, lens = window_indices(positions, reqs, pages, base, window, case.rows_per_page)
    assert indices.dtype == lens.dtype == torch.int32 and indices.shape == (len(case.positions), window)
    for t, (req, position) in enumerate(zip(case.reqs, case.positions, strict=True)):
        keys = range(max(0, position - window + 1), position + 1) if case.is_live(t) else range(0)
        assert lens[t] == len(keys)
        assert indices[t].tolist() == [case.slot(req, key) for key in keys] + [-1] * (window - len(keys))


@FEW
@given(cases(), st.integers(1, 9))
def test_window_state_slots_equal_the_oracle(case, window):
    positions, reqs, pages, base = case.tensors
    got = window_state_slots(positions, reqs, pages, base, window, case.rows_per_page)
    for t, (req, position) in enumerate(zip(case.reqs, case.positions, strict=True)):
        assert got[t].tolist() == [case.slot(req, position - window + 1 + k) for k in range(window)]


@FEW
@given(cases(sliding=False), st.data())
def test_topk_slots_are_packed_and_keep_their_order(case, data):
    _, reqs, pages, _ = case.tensors
    width = data.draw(st.integers(0, 6))
    entry = st.integers(-3, 6 * case.rows_per_page)
    topk = [data.draw(st.lists(entry, min_size=width, max_size=width)) for _ in case.reqs]
    table = torch.tensor(topk, dtype=case.dtype).view(len(topk), width)
    indices, lens = topk_slots(table, reqs, pages, case.rows_per_page)
    for t, req in enumerate(case.reqs):
        want = [slot for slot in (case.slot(req, row) for row in topk[t]) if slot >= 0]
        assert lens[t] == len(want) and indices[t].tolist() == want + [-1] * (width - len(want))


@FEW
@given(cases(sliding=False), st.sampled_from([1, 4, 128]), st.integers(0, 40))
def test_compressed_visibility_is_that_of_completed_rows(case, ratio, width):
    """Invariant 2: a query sees compressed row j if and only if j < (p + 1) // ratio."""
    positions, reqs, pages, _ = case.tensors
    assert visible_rows(positions, ratio).tolist() == [max(0, (p + 1) // ratio) for p in case.positions]
    indices, lens = dense_indices(positions, reqs, pages, ratio, case.rows_per_page, width)
    for t, (req, position) in enumerate(zip(case.reqs, case.positions, strict=True)):
        count = min(max(0, (position + 1) // ratio), width) if case.is_live(t) else 0
        assert lens[t] == count
        assert indices[t].tolist() == [case.slot(req, j) for j in range(count)] + [-1] * (width - count)


@FEW
@given(cases(sliding=False), st.sampled_from([4, 128]))
def test_indexer_context_ends_at_what_is_visible_and_present(case, ratio):
    positions, reqs, pages, _ = case.tensors
    max_len = case.num_columns * case.rows_per_page
    plan = indexer_plan(positions, reqs, pages, ratio, case.rows_per_page, max_len)
    assert plan.pages_TM.shape[1] == plan.max_blocks == max(1, case.num_columns)
    assert (plan.pages_TM >= 0).all()
    for t, (req, position) in enumerate(zip(case.reqs, case.positions, strict=True)):
        count = 0
        while count < max(0, (position + 1) // ratio) and case.slot(req, count) >= 0:
            count += 1
        assert plan.context_lens_T1[t].item() == count


@FEW
@given(cases())
def test_no_slot_is_out_of_range(case):
    """Invariant 9: whatever the table, a slot is -1 or a row of an existing page."""
    positions, reqs, pages, base = case.tensors
    results = [
        slot_mapping(positions, reqs, pages, base, case.rows_per_page),
        window_indices(positions, reqs, pages, base, 5, case.rows_per_page)[0],
        window_state_slots(positions, reqs, pages, base, 5, case.rows_per_page),
        compressed_slots(positions, reqs, pages, 4, case.rows_per_page),
        dense_indices(positions, reqs, pages, 4, case.rows_per_page, 9)[0],
        topk_slots(positions.unsqueeze(-1) + torch.arange(-2, 3), reqs, pages, case.rows_per_page)[0],
    ]
    for result in results:
        assert ((result >= -1) & (result < NUM_PAGES * case.rows_per_page)).all()


@FEW
@given(cases())
def test_strided_views_give_the_same_result(case):
    positions, reqs, pages, base = case.tensors
    want = window_indices(positions, reqs, pages, base, 4, case.rows_per_page)
    twice = [torch.stack([x, x], dim=-1)[..., 0] for x in (positions, reqs, pages)]
    base2 = None if base is None else torch.stack([base, base], dim=-1)[:, 0]
    got = window_indices(*twice, base2, 4, case.rows_per_page)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@FEW
@given(cases(), st.integers(-6, 0), st.integers(1, 6))
def test_range_functions_of_the_plan_equal_the_oracle(case, first, last):
    """The plan's range forms of these functions agree with the per-token rule on real requests."""
    _, _, pages, base = case.tensors
    table = GroupTable(pages_BC=pages, base_B=base)
    starts = [3 * b for b in range(case.num_reqs)]
    got = range_slots(table, None, torch.tensor(starts, dtype=torch.int64), range(first, last), case.rows_per_page)
    want = [[case.slot(b, p + k) for k in range(first, last)] for b, p in enumerate(starts)]
    assert got.tolist() == want
    if base is None and case.num_reqs:
        entries = torch.arange(-1, 6)
        reqs = torch.zeros_like(entries)
        want = [case.slot(0, e) for e in entries.tolist()]
        assert entry_slots(table, reqs, entries, case.rows_per_page).tolist() == want
        history = history_slots(table, None, case.num_columns + 1, case.rows_per_page)
        want = [case.slot(0, j) for j in range((case.num_columns + 1) * case.rows_per_page)]
        assert [max(-1, s) for s in history[0].tolist()] == want


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_window_of_every_query_is_whole_through_the_allocator(data):
    """Invariant 1: a query attends exactly the positions max(0, p - W + 1) .. p of its request, wherever pages break.

    Two requests take turns on a small pool, with accepted prefixes of any length, so that pages are reused.
    """
    window = data.draw(st.sampled_from([1, 4, 8, 13]))
    rows_per_page = data.draw(st.sampled_from([1, 2, 4, 8]))
    spec = CacheGroupSpec(
        group_id="window",
        retention=Retention.SLIDING_WINDOW,
        rows_per_page=rows_per_page,
        sliding_window_tokens=window,
    )
    allocator = PageAllocator(spec, num_pages=60, max_rows=2)
    written: dict[int, tuple[int, int]] = {}
    committed = [0, 0]
    for step in range(data.draw(st.integers(1, 12))):
        row, width = step % 2, data.draw(st.integers(1, 9))
        first = committed[row]
        allocator.reserve(row, first_position=first, target=first + width)
        held = allocator.row(row)
        table = torch.tensor([held.page_ids], dtype=torch.int32), torch.tensor([held.base], dtype=torch.int32)
        tokens = torch.arange(first, first + width)
        reqs = torch.zeros_like(tokens)
        slots = slot_mapping(tokens, reqs, *table, rows_per_page).tolist()
        assert min(slots) >= rows_per_page and len(set(slots)) == width
        written.update((slot, (row, p)) for slot, p in zip(slots, tokens.tolist(), strict=True))
        indices, lens = window_indices(tokens, reqs, *table, window, rows_per_page)
        for p, found, length in zip(tokens.tolist(), indices.tolist(), lens.tolist(), strict=True):
            want = [(row, key) for key in range(max(0, p - window + 1), p + 1)]
            assert [written[slot] for slot in found[:length]] == want
        committed[row] += data.draw(st.integers(1, width))
        allocator.roll_back(row, target=committed[row])
