"""CacheManager: all groups move together or not at all, and the block tables follow."""

import copy

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backends.deepseek_v4.cache_groups import SWA_GROUP, AttentionKind, CacheLayout, state_group
from specdec.cache.allocator import CacheManager, Reservation
from specdec.cache.spec import DUMMY_PAGE
from specdec.cache.tables import BlockTables
from specdec.errors import CapacityError, ConfigError

SPECS = CacheLayout(compress_ratios=(0, 4, 128), sliding_window=128).group_specs()
GROUP_IDS = [spec.group_id for spec in SPECS]
C4_STATE = state_group(AttentionKind.CSA)


def manager(*, swa_pages: int = 200) -> CacheManager:
    num_pages = dict.fromkeys(GROUP_IDS, 200) | {SWA_GROUP: swa_pages}
    return CacheManager(SPECS, num_pages, max_rows=3, draft_groups={SWA_GROUP})


def snapshot(cache: CacheManager) -> list[tuple]:
    """Everything a caller can see of every row, and the free counts."""
    rows = []
    for allocator in cache.allocators.values():
        for row in range(3):
            pages = allocator.row(row)
            rows.append((tuple(pages.page_ids), pages.base, pages.cursor, pages.num_borrowed))
        rows.append((allocator.num_free,))
    return rows


def cursors(cache: CacheManager, row: int = 0) -> list[int]:
    return [allocator.row(row).cursor for allocator in cache.allocators.values()]


def test_decode_reserves_the_draft_reach_in_draft_groups_only():
    cache = manager()
    cache.reserve_decode(0, 123, width=4, num_draft_tokens=3)
    assert cursors(cache) == [129, 127, 127, 127, 127, 127]
    # Positions 123..128: the last draft step would have no page without the reach.
    assert len(cache.allocators[SWA_GROUP].row(0).page_ids) == 3


def test_decode_under_overlap_reserves_the_round_in_flight():
    cache = manager()
    cache.reserve_decode(0, 123, width=4, num_draft_tokens=3, in_flight_tokens=4)
    assert cursors(cache) == [133, 131, 131, 131, 131, 131]


@pytest.mark.parametrize("num_draft_tokens", [0, 1])
def test_draft_of_up_to_one_token_reaches_no_further(num_draft_tokens):
    cache = manager()
    cache.reserve_decode(0, 10, width=2, num_draft_tokens=num_draft_tokens)
    assert cursors(cache) == [12] * 6


def test_last_chunk_of_a_prompt_makes_room_for_the_draft():
    cache = manager()
    cache.reserve_chunk(0, 0, 64, extra=2)
    assert cursors(cache) == [66, 64, 64, 64, 64, 64]
    assert len(cache.allocators[SWA_GROUP].row(0).page_ids) == 2


def test_first_query_keeps_its_oldest_key():
    # The query at 190 needs key 63, the last one of page 0; a start of 191 would have released it.
    cache = manager()
    cache.reserve_chunk(0, 0, 190)
    cache.reserve_decode(0, 190, width=4, num_draft_tokens=3)
    assert cache.allocators[SWA_GROUP].row(0).base == 0
    cache.reserve_decode(0, 191, width=4, num_draft_tokens=3)
    assert cache.allocators[SWA_GROUP].row(0).base == 1


def test_roll_back_keeps_the_round_in_flight():
    cache = manager()
    cache.reserve_decode(0, 100, width=8, num_draft_tokens=7, in_flight_tokens=8)
    cache.roll_back(0, 101, in_flight_tokens=8)
    assert cursors(cache) == [109] * 6


def test_failed_reservation_moves_no_page_in_any_group():
    cache = manager(swa_pages=4)
    cache.reserve_chunk(0, 0, 100)
    before = snapshot(cache)
    # Every other group has room, and the window group is short only for the draft reach.
    request = cache.chunk(1, 0, 63, extra=66)
    with pytest.raises(CapacityError, match=r"v4\.swa_kv: 3 pages wanted for row 1, 1 of 3 are free"):
        cache.reserve(request)
    assert snapshot(cache) == before
    assert cache.num_failed == 1
    cache.reserve_chunk(1, 0, 63)
    cache.check_integrity()


def test_try_reserve_takes_all_pages_or_none_and_counts_no_failure():
    cache = manager(swa_pages=4)
    cache.reserve_chunk(0, 0, 100)
    before = snapshot(cache)
    assert not cache.try_reserve([cache.chunk(2, 0, 1), cache.chunk(1, 0, 63, extra=66)])
    assert (snapshot(cache), cache.num_failed) == (before, 0)
    assert cache.try_reserve([cache.chunk(1, 0, 63)])
    assert cursors(cache, row=1) == [63] * 6
    cache.check_integrity()


def test_try_reserve_counts_all_requests_together():
    one, two = (
        Reservation(row=0, first_position=0, num_tokens=128),
        Reservation(row=1, first_position=0, num_tokens=128),
    )
    for alone in (one, two):
        assert manager(swa_pages=4).try_reserve([alone])
    assert not manager(swa_pages=4).try_reserve([one, two])


def test_try_reserve_lets_later_requests_use_what_earlier_ones_release():
    cache = manager(swa_pages=4)
    cache.reserve_chunk(0, 0, 192)
    moving, fresh = (
        Reservation(row=0, first_position=192, num_tokens=0),
        Reservation(row=1, first_position=0, num_tokens=64),
    )
    assert not cache.try_reserve([fresh])
    assert not cache.try_reserve([fresh, moving])
    assert cache.try_reserve([moving, fresh])
    cache.check_integrity()


@pytest.mark.parametrize("row", [-1, 3])
def test_row_that_does_not_exist_is_a_mistake_of_the_caller(row):
    with pytest.raises(AssertionError, match=f"row {row} of 3"):
        manager().reserve_chunk(row, 0, 4)
    with pytest.raises(AssertionError, match=f"row {row} of 3"):
        manager().try_reserve([Reservation(row=row, first_position=0, num_tokens=4)])


def test_release_returns_everything():
    cache = manager()
    full = cache.num_free
    cache.reserve_chunk(0, 0, 500, extra=3)
    cache.reserve_chunk(1, 0, 77)
    cache.release(0)
    cache.release(1)
    assert cache.num_free == full
    cache.check_integrity()


def test_take_changes_names_each_changed_table_row_once():
    cache = manager()
    cache.reserve_chunk(2, 0, 3)
    assert sorted(change.group_id for change in cache.take_changes()) == sorted(GROUP_IDS)
    assert cache.take_changes() == []
    cache.reserve_chunk(2, 3, 2)
    (csa, index) = cache.take_changes()
    assert {csa.group_id, index.group_id} == {C4_STATE, "v4.c4a.indexer_compressor_state"}
    assert (csa.row, len(csa.page_ids), csa.base) == (2, 2, 0)


@pytest.mark.parametrize(
    ("pages", "draft_groups", "message"),
    [
        ({}, (), "no number of pages for cache groups"),
        ({"other": 5}, (), "number of pages given for unknown cache groups"),
        (dict.fromkeys(GROUP_IDS, 5), ("v4.other",), "draft groups given for unknown cache groups"),
    ],
)
def test_group_ids_that_do_not_fit_are_refused(pages, draft_groups, message):
    with pytest.raises(ConfigError, match=message):
        CacheManager(SPECS, pages, max_rows=1, draft_groups=draft_groups)


def test_group_ids_must_differ():
    with pytest.raises(ConfigError, match="different ids"):
        CacheManager([SPECS[0], SPECS[0]], {SWA_GROUP: 5}, max_rows=1)


class Serving(RuleBasedStateMachine):
    """Random operations on three rows of a small pool; a reference keeps only what each row may rely on."""

    def __init__(self) -> None:
        super().__init__()
        counts = (9, 30, 5, 70, 5, 30)
        pages = dict(zip(GROUP_IDS, counts, strict=True))
        self.cache = CacheManager(SPECS, pages, max_rows=3, draft_groups={SWA_GROUP})
        self.tables = BlockTables(SPECS, pages, max_rows=3, device=torch.device("cpu"))
        self.committed = [0, 0, 0]
        self.open = [0, 0, 0]

    def pages_of(self, row: int) -> dict[tuple[str, int], int]:
        """Physical page of every logical page that a query at the committed length may read."""
        seen = {}
        for spec in SPECS:
            pages = self.cache.allocators[spec.group_id].row(row)
            low = max(0, self.committed[row] - spec.sliding_window_tokens + 1) if spec.is_sliding else 0
            for position in range(low, self.committed[row]):
                logical = position // spec.tokens_per_page
                seen[spec.group_id, logical] = pages.page_ids[logical - pages.base]
        return seen

    def attempt(self, request: Reservation) -> None:
        row = request.row
        before, kept = snapshot(self.cache), self.pages_of(row)
        num_failed = self.cache.num_failed
        fits = self.cache.try_reserve([request])
        assert self.cache.num_failed == num_failed
        if not fits:
            assert snapshot(self.cache) == before
            with pytest.raises(CapacityError):
                self.cache.reserve(request)
            assert snapshot(self.cache) == before
            assert self.cache.num_failed == num_failed + 1
            return
        after = snapshot(self.cache)
        self.cache.reserve(request)
        assert snapshot(self.cache) == after
        self.open[row] = request.num_tokens
        assert self.pages_of(row) == kept
        for allocator in self.cache.allocators.values():
            assert allocator.row(row).cursor >= request.first_position + request.num_tokens
            extra = request.extra if allocator.spec.group_id in self.cache.draft_groups else 0
            pages = allocator.row(row)
            reached = request.first_position + request.num_tokens + extra
            assert (pages.base + len(pages.page_ids)) * allocator.spec.tokens_per_page >= reached

    @rule(row=st.integers(0, 2), tokens=st.integers(1, 260), extra=st.integers(0, 6))
    def reserve_chunk(self, row: int, tokens: int, extra: int) -> None:
        self.attempt(self.cache.chunk(row, self.committed[row], tokens, extra=extra))

    @rule(row=st.integers(0, 2), width=st.integers(1, 8), drafted=st.integers(0, 7), flight=st.integers(0, 8))
    def reserve_decode(self, row: int, width: int, drafted: int, flight: int) -> None:
        self.attempt(
            self.cache.decode(row, self.committed[row], width=width, num_draft_tokens=drafted, in_flight_tokens=flight)
        )

    @rule(
        widths=st.tuples(*[st.integers(1, 8)] * 3),
        parts=st.tuples(*[st.floats(0, 1)] * 3),
        order=st.permutations(range(3)),
    )
    def run_a_round_of_all_rows(self, widths: tuple[int, ...], parts: tuple[float, ...], order: list[int]) -> None:
        """Reserving and rolling back together is what doing so row by row is, or happens for no row."""
        requests = [self.cache.decode(row, self.committed[row], width=widths[row], num_draft_tokens=3) for row in order]
        before, num_failed = snapshot(self.cache), self.cache.num_failed
        alone = copy.deepcopy(self.cache)
        if not self.cache.try_reserve(requests):
            assert (snapshot(self.cache), self.cache.num_failed) == (before, num_failed)
            with pytest.raises(CapacityError):
                for request in requests:
                    alone.reserve(request)
            return
        for request in requests:
            alone.reserve(request)
        assert snapshot(self.cache) == snapshot(alone)
        self.committed = [c + int(parts[row] * widths[row]) for row, c in enumerate(self.committed)]
        self.open = [0, 0, 0]
        kept = [self.pages_of(row) for row in order]
        self.cache.roll_back_rows([(row, self.committed[row]) for row in order])
        for row in order:
            alone.roll_back(row, self.committed[row])
        assert snapshot(self.cache) == snapshot(alone)
        assert [self.pages_of(row) for row in order] == kept

    @rule(row=st.integers(0, 2), part=st.floats(0, 1))
    def commit_and_roll_back(self, row: int, part: float) -> None:
        self.committed[row] += int(part * self.open[row])
        self.open[row] = 0
        kept = self.pages_of(row)
        self.cache.roll_back(row, self.committed[row])
        assert self.pages_of(row) == kept

    @rule(row=st.integers(0, 2))
    def commit_a_chunk(self, row: int) -> None:
        self.committed[row] += self.open[row]
        self.open[row] = 0
        kept = self.pages_of(row)
        self.cache.release_skipped(row, self.committed[row])
        assert self.pages_of(row) == kept

    @rule(row=st.integers(0, 2))
    def release(self, row: int) -> None:
        self.cache.release(row)
        self.committed[row] = self.open[row] = 0

    @rule(row=st.integers(0, 2), tokens=st.integers(0, 300))
    def start_deep_inside_a_sequence(self, row: int, tokens: int) -> None:
        if self.committed[row] == self.open[row] == 0 and all(c == 0 for c in cursors(self.cache, row)):
            self.attempt(Reservation(row=row, first_position=tokens, num_tokens=1))
            self.cache.release(row)
            self.open[row] = 0

    @invariant()
    def pages_are_conserved(self) -> None:
        """Invariant 8: every page but page 0 is free or owned once."""
        self.cache.check_integrity()
        for allocator in self.cache.allocators.values():
            owned = [page for row in range(3) for page in allocator.row(row).page_ids]
            assert DUMMY_PAGE not in owned
            assert len(owned) + allocator.num_free == allocator.num_pages - 1
            assert len(set(owned)) == len(owned)

    @invariant()
    def tables_show_the_pages(self) -> None:
        self.tables.write(self.cache.take_changes())
        for rows in ((0, 1, 2), (2, 0)):
            for group_id, table in self.tables.view(rows).items():
                for index, row in enumerate(rows):
                    pages = self.cache.allocators[group_id].row(row)
                    padding = [-1] * (table.pages_BC.shape[1] - len(pages.page_ids))
                    assert table.pages_BC[index].tolist() == [*pages.page_ids, *padding]
                    assert table.base_B is None or table.base_B[index].item() == pages.base


TestServing = Serving.TestCase
TestServing.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
