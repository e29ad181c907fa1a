"""PageAllocator: the pages of one cache group, per request row; host integers only, knows no tensors.

Of one row and group:

    page_ids    column c holds the physical page of logical page ``base + c``
    base        logical pages before it have left the sliding window
    cursor      raw positions below it are covered by a page (exclusive)
    published   raw positions below it are shared for reuse; a roll back never goes under it
    borrowed    leading entries of ``page_ids`` that belong to another row; they are forgotten, never freed

From them follow two limits, kept so that a round in which no page moves costs two comparisons:

    covered     raw positions below it have a page (exclusive), those before the window aside
    leaves_at   first position whose query lets a page leave the window

Physical page 0 is the dummy page: never handed out.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec.cache.spec import CacheGroupSpec
from specdec.checks import integer, positive_int
from specdec.errors import CapacityError

NEVER = sys.maxsize

Span = tuple[int, int, int]
"""Row, position of its first query, and first raw position that it need not cover."""


@dataclass(slots=True)
class RowPages:
    """Pages of one row in one group; written by its PageAllocator only (fields: see the module)."""

    page_ids: list[int] = field(default_factory=list)
    base: int = 0
    cursor: int = 0
    published: int = 0
    num_borrowed: int = 0
    covered: int = 0
    leaves_at: int = NEVER


class PageAllocator:
    """Owns the free list of one group and the page list of every row. Not thread-safe."""

    def __init__(self, spec: CacheGroupSpec, *, num_pages: int, max_rows: int) -> None:
        integer(f"{spec.group_id}: num_pages", num_pages, low=2)
        positive_int("max_rows", max_rows)
        self.spec = spec
        self.num_pages = num_pages
        self.num_failed = 0
        self._page_tokens = spec.tokens_per_page
        self._window = spec.sliding_window_tokens
        # Taken from the end, so the lowest ids go first.
        self._free = list(range(num_pages - 1, 0, -1))
        self._rows = [RowPages() for _ in range(max_rows)]
        self._changed: set[int] = set()
        for row in range(max_rows):
            self._note(row)
        # Device tables begin without pages, as these rows do.
        self._changed.clear()

    @property
    def num_free(self) -> int:
        """Pages that no row holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages that some row holds; page 0 is never handed out."""
        return self.num_pages - 1 - len(self._free)

    def row(self, row: int) -> RowPages:
        """The pages of ``row``; read only, valid until the next operation on the row."""
        return self._rows[row]

    def shortfall(self, row: int, *, first_position: int, target: int) -> tuple[int, int]:
        """``(pages that would come back, pages that would be taken)`` by ``reserve``; changes nothing."""
        state = self._rows[row]
        num_pages = len(state.page_ids)
        base = state.base
        freed = 0
        if self._window:
            skip = (first_position - self._window + 1) // self._page_tokens - base
            if skip > 0:
                dropped = min(skip, num_pages)
                freed = max(0, dropped - state.num_borrowed)
                base += skip
                num_pages -= dropped
        if target <= state.cursor:
            return freed, 0
        return freed, max(0, -(-target // self._page_tokens) - base - num_pages)

    def has_room(self, spans: Sequence[Span]) -> bool:
        """Whether all ``spans``, of different rows and reserved in this order, would find their pages.

        Changes nothing.
        """
        free, rows, page_tokens = len(self._free), self._rows, self._page_tokens
        most = 0
        for row, _, target in spans:
            missing = target - rows[row].covered
            if missing > 0:
                most += -(-missing // page_tokens)
        if most <= free:
            # Room for all of them even if nothing comes back.
            return True
        for row, first_position, target in spans:
            freed, wanted = self.shortfall(row, first_position=first_position, target=target)
            free += freed - wanted
            if free < 0:
                return False
        return True

    def require(self, row: int, *, first_position: int, target: int) -> None:
        """Raise CapacityError, and count it, when ``reserve`` would find too few pages; moves nothing."""
        assert 0 <= row < len(self._rows), f"row {row} of {len(self._rows)}"
        freed, wanted = self.shortfall(row, first_position=first_position, target=target)
        if wanted > len(self._free) + freed:
            self.num_failed += 1
            raise CapacityError(
                f"{self.spec.group_id}: {wanted} pages wanted for row {row}, "
                f"{len(self._free) + freed} of {self.num_pages - 1} are free"
            )

    def reserve(self, row: int, *, first_position: int, target: int) -> None:
        """Release what no query from ``first_position`` on can see, then cover positions below ``target``.

        Raises CapacityError, with no page moved, when too few pages are free.
        """
        self.require(row, first_position=first_position, target=target)
        self.advance([(row, first_position, target)])

    def advance(self, spans: Iterable[Span]) -> None:
        """``reserve`` each of ``spans`` for a caller who knows that there is room."""
        rows = self._rows
        for row, first_position, target in spans:
            state = rows[row]
            if first_position >= state.leaves_at:
                self.release_skipped(row, first_position=first_position)
            if target > state.covered:
                self._extend(row, target)
            if target > state.cursor:
                state.cursor = target

    def _extend(self, row: int, target: int) -> None:
        """Take pages up to ``target``, beyond those that the row has."""
        state = self._rows[row]
        wanted = -(-(target - state.covered) // self._page_tokens)
        assert wanted <= len(self._free), f"{self.spec.group_id}: advance without a check of the free list"
        state.page_ids.extend(self._free[: -wanted - 1 : -1])
        del self._free[-wanted:]
        self._note(row)

    def release_skipped(self, row: int, *, first_position: int) -> None:
        """Drop front pages of a sliding group that no query at or after ``first_position`` can see.

        An empty row only moves its base, so a request that starts deep inside a sequence begins compact.
        """
        state = self._rows[row]
        if first_position < state.leaves_at:
            return
        skip = (first_position - self._window + 1) // self._page_tokens - state.base
        borrowed = min(skip, state.num_borrowed)
        self._free.extend(state.page_ids[borrowed:skip])
        del state.page_ids[:skip]
        state.num_borrowed -= borrowed
        state.base += skip
        self._note(row)

    def roll_back(self, row: int, *, target: int) -> None:
        """Give back owned tail pages that only cover positions at or beyond ``target``; never extends."""
        state = self._rows[row]
        target = max(target, state.published)
        if target >= state.cursor:
            return
        state.cursor = target
        keep = max(state.num_borrowed, -(-target // self._page_tokens) - state.base)
        if keep >= len(state.page_ids):
            return
        self._free.extend(reversed(state.page_ids[keep:]))
        del state.page_ids[keep:]
        self._note(row)

    def settle(self, ends: Iterable[tuple[int, int]], *, in_flight_tokens: int = 0) -> None:
        """Of each row and its committed positions: ``roll_back`` to them and what is in flight, ``release_skipped``."""
        rows, page_tokens = self._rows, self._page_tokens
        for row, committed in ends:
            state, target = rows[row], committed + in_flight_tokens
            if target < state.cursor:
                if target > state.covered - page_tokens and target >= state.published:
                    state.cursor = target
                else:
                    self.roll_back(row, target=target)
            if committed >= state.leaves_at:
                self.release_skipped(row, first_position=committed)

    def borrow(self, row: int, page_ids: Sequence[int], *, base: int, num_tokens: int) -> None:
        """Start a fresh row on pages that another row owns: logical pages ``base ..`` up to ``num_tokens``.

        The prefix ends at a page boundary, because the row writes the pages after it. The owner keeps its
        pages for as long as they are borrowed.
        """
        state = self._rows[row]
        assert not state.page_ids and state.cursor == 0, f"row {row} is not fresh"
        assert num_tokens == (base + len(page_ids)) * self._page_tokens, "a borrowed prefix ends with a page"
        assert self._window or base == 0, "full history has no base"
        state.page_ids.extend(page_ids)
        state.base = base
        state.num_borrowed = len(page_ids)
        state.cursor = state.published = num_tokens
        self._note(row)

    def publish(self, row: int, *, num_tokens: int) -> None:
        """Mark positions below ``num_tokens`` as shared for reuse."""
        state = self._rows[row]
        assert num_tokens <= state.cursor, f"row {row}: {num_tokens} published of {state.cursor} reserved"
        state.published = max(state.published, num_tokens)

    def release(self, row: int) -> None:
        """Give everything back and make the row fresh."""
        state = self._rows[row]
        self._free.extend(reversed(state.page_ids[state.num_borrowed :]))
        self._rows[row] = RowPages()
        self._note(row)

    def take_changes(self) -> list[tuple[int, RowPages]]:
        """The rows whose pages changed since the last call, each once, with their pages."""
        if not self._changed:
            return []
        changed = [(row, self._rows[row]) for row in self._changed]
        self._changed.clear()
        return changed

    def _note(self, row: int) -> None:
        """After every change of the pages of ``row``: set its two limits and remember it for ``take_changes``."""
        state = self._rows[row]
        state.covered = (state.base + len(state.page_ids)) * self._page_tokens
        if self._window:
            state.leaves_at = (state.base + 1) * self._page_tokens + self._window - 1
        self._changed.add(row)

    def check_integrity(self) -> None:
        """Every page but the dummy is free or owned by one row, and every row covers its cursor.

        Raises AssertionError otherwise; linear in the number of pages, for tests and debugging.
        """
        name = self.spec.group_id
        owned = [page for state in self._rows for page in state.page_ids[state.num_borrowed :]]
        counts = Counter(owned)
        counts.update(self._free)
        expected = Counter(range(1, self.num_pages))
        assert counts == expected, f"{name}: a page is lost, owned twice, or page 0 was given out"
        owners = set(owned)
        for row, state in enumerate(self._rows):
            lent = state.page_ids[: state.num_borrowed]
            assert owners.issuperset(lent), f"{name}: row {row} borrows a page that nobody owns"
            covered = (state.base + len(state.page_ids)) * self._page_tokens
            assert state.covered == covered, f"{name}: row {row} misjudges its pages"
            leaves_at = (state.base + 1) * self._page_tokens + self._window - 1 if self._window else NEVER
            assert state.leaves_at == leaves_at, f"{name}: row {row} misjudges its window"
            assert state.cursor <= covered, f"{name}: row {row} has no page up to its cursor"
            assert state.base == 0 or self._window, f"{name}: full history with a base"
