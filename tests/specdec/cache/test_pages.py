"""PageAllocator: what each operation does to the pages of one row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.cache.pages import PageAllocator
from specdec.cache.spec import DUMMY_PAGE, CacheGroupSpec, Retention
from specdec.errors import CapacityError, ConfigError

WINDOW = 8
PAGE = 4


def sliding_allocator(num_pages: int = 12, max_rows: int = 3) -> PageAllocator:
    spec = CacheGroupSpec(
        group_id="window", retention=Retention.SLIDING_WINDOW, rows_per_page=PAGE, sliding_window_tokens=WINDOW
    )
    return PageAllocator(spec, num_pages=num_pages, max_rows=max_rows)


def history_allocator(num_pages: int = 12, max_rows: int = 3) -> PageAllocator:
    spec = CacheGroupSpec(group_id="history", retention=Retention.FULL_HISTORY, rows_per_page=2, entry_stride_tokens=4)
    return PageAllocator(spec, num_pages=num_pages, max_rows=max_rows)


def test_reserve_covers_the_target_with_whole_pages():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=9)
    assert len(pages.row(0).page_ids) == 2
    assert pages.row(0).cursor == 9
    assert pages.num_used == 2


def test_reserve_below_the_cursor_changes_nothing():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=9)
    pages.reserve(0, first_position=0, target=5)
    assert pages.row(0).cursor == 9
    assert pages.num_used == 2


def test_full_history_never_moves_its_base():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=16)
    pages.reserve(0, first_position=500, target=17)
    assert pages.row(0).base == 0
    assert len(pages.row(0).page_ids) == 3


def test_dummy_page_is_never_handed_out():
    pages = history_allocator(num_pages=4)
    pages.reserve(0, first_position=0, target=24)
    assert sorted(pages.row(0).page_ids) == [1, 2, 3]
    assert DUMMY_PAGE not in pages.row(0).page_ids


def test_shortage_raises_and_leaves_everything_as_it_was():
    pages = sliding_allocator(num_pages=5)
    pages.reserve(0, first_position=0, target=16)
    before = list(pages.row(0).page_ids)
    with pytest.raises(CapacityError, match="window: 5 pages wanted for row 0, 2 of 4 are free"):
        pages.reserve(0, first_position=16, target=36)
    assert pages.row(0).page_ids == before
    assert (pages.row(0).base, pages.row(0).cursor) == (0, 16)
    assert pages.num_failed == 1
    pages.check_integrity()


def test_reserve_may_use_the_pages_that_it_releases():
    pages = sliding_allocator(num_pages=5)
    pages.reserve(0, first_position=0, target=16)
    pages.reserve(0, first_position=16, target=24)
    assert (pages.row(0).base, len(pages.row(0).page_ids)) == (2, 4)
    assert pages.num_free == 0


def test_release_skipped_keeps_the_oldest_key_of_the_first_query():
    # A query at 11 needs positions 4..11; one at 12 needs 5..12, which still touch page 1.
    pages = sliding_allocator()
    pages.reserve(0, first_position=0, target=16)
    pages.release_skipped(0, first_position=10)
    assert pages.row(0).base == 0
    pages.release_skipped(0, first_position=11)
    assert pages.row(0).base == 1
    pages.release_skipped(0, first_position=14)
    assert pages.row(0).base == 1


def test_fresh_row_deep_inside_a_sequence_starts_compact():
    pages = sliding_allocator()
    pages.reserve(0, first_position=1000, target=1004)
    assert (pages.row(0).base, len(pages.row(0).page_ids)) == ((1000 - WINDOW + 1) // PAGE, 3)


def test_jump_beyond_all_pages_takes_no_page_for_skipped_positions():
    pages = sliding_allocator()
    pages.reserve(0, first_position=0, target=8)
    pages.reserve(0, first_position=100, target=104)
    assert (pages.row(0).base, len(pages.row(0).page_ids)) == (23, 3)
    pages.check_integrity()


def test_roll_back_frees_the_tail_and_moves_the_cursor():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=33)
    kept = pages.row(0).page_ids[:2]
    pages.roll_back(0, target=16)
    assert pages.row(0).page_ids == kept
    assert pages.row(0).cursor == 16


def test_roll_back_beyond_the_cursor_does_not_extend_it():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=10)
    pages.roll_back(0, target=12)
    assert pages.row(0).cursor == 10


def test_roll_back_stops_at_published_positions():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=33)
    pages.publish(0, num_tokens=24)
    pages.roll_back(0, target=3)
    assert (pages.row(0).cursor, len(pages.row(0).page_ids)) == (24, 3)


def test_release_makes_the_row_fresh():
    pages = sliding_allocator()
    pages.reserve(0, first_position=40, target=44)
    pages.release(0)
    row = pages.row(0)
    assert (row.page_ids, row.base, row.cursor, row.published) == ([], 0, 0, 0)
    assert pages.num_used == 0
    pages.check_integrity()


def test_borrowed_pages_are_forgotten_and_owned_ones_return():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=16)
    lent = list(pages.row(0).page_ids)
    pages.borrow(1, lent, base=0, num_tokens=16)
    pages.reserve(1, first_position=16, target=30)
    assert pages.row(1).page_ids[:2] == lent
    assert pages.num_used == 4
    pages.check_integrity()
    pages.roll_back(1, target=0)
    assert pages.row(1).page_ids == lent
    pages.release(1)
    assert pages.row(0).page_ids == lent
    assert pages.num_used == 2
    pages.check_integrity()


def test_borrowed_front_pages_leave_the_window_without_being_freed():
    pages = sliding_allocator()
    pages.reserve(0, first_position=8, target=16)
    lender = pages.row(0)
    pages.borrow(1, lender.page_ids, base=lender.base, num_tokens=16)
    pages.reserve(1, first_position=20, target=24)
    used = pages.num_used
    pages.release_skipped(1, first_position=20)
    assert pages.row(1).base == 3
    assert pages.num_used == used == 4 + 2
    pages.check_integrity()
    pages.release_skipped(1, first_position=100)
    assert pages.num_used == 4
    pages.check_integrity()


def test_integrity_check_finds_a_released_lender():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=8)
    pages.borrow(1, list(pages.row(0).page_ids), base=0, num_tokens=8)
    pages.release(0)
    with pytest.raises(AssertionError, match="borrows a page that nobody owns"):
        pages.check_integrity()


def test_prefix_that_ends_inside_a_page_cannot_be_borrowed():
    pages = history_allocator()
    pages.reserve(0, first_position=0, target=8)
    with pytest.raises(AssertionError, match="ends with a page"):
        pages.borrow(1, list(pages.row(0).page_ids), base=0, num_tokens=7)


def test_take_changes_reports_each_change_once():
    pages = sliding_allocator()
    assert pages.take_changes() == []
    pages.reserve(0, first_position=0, target=3)
    pages.reserve(1, first_position=0, target=3)
    assert sorted(row for row, _ in pages.take_changes()) == [0, 1]
    pages.reserve(0, first_position=3, target=4)
    assert pages.take_changes() == []
    pages.release(0)
    assert [(row, state.page_ids) for row, state in pages.take_changes()] == [(0, [])]


@pytest.mark.parametrize("num_pages", [0, 1])
def test_pool_without_a_usable_page_is_refused(num_pages):
    with pytest.raises(ConfigError, match="num_pages must be an integer of at least 2"):
        history_allocator(num_pages=num_pages)


@given(committed=st.integers(0, 60), horizon=st.integers(1, 30))
@settings(deadline=None, max_examples=100)
def test_reserve_then_roll_back_leaves_the_allocator_as_it_was(committed, horizon):
    for pages in (sliding_allocator(num_pages=40), history_allocator(num_pages=40)):
        pages.reserve(0, first_position=0, target=committed)
        pages.release_skipped(0, first_position=committed)
        row = pages.row(0)
        before = (list(row.page_ids), row.base, row.cursor, pages.num_free)
        pages.reserve(0, first_position=committed, target=committed + horizon)
        pages.roll_back(0, target=committed)
        assert (row.page_ids, row.base, row.cursor, pages.num_free) == before
