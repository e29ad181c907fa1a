"""CacheManager: reserves, rolls back and releases the pages of all cache groups of a request together.

Host integers only. The order of one round: ``reserve_decode`` (or ``reserve_chunk``), ``take_changes`` into
the block tables, the passes of target and draft, then ``roll_back`` to what was committed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from specdec.cache.pages import PageAllocator, Span
from specdec.cache.sizing import draft_reach
from specdec.cache.spec import CacheGroupSpec
from specdec.errors import ConfigError

__all__ = ["CacheManager", "PageAllocator", "Reservation", "TableChange"]


class Reservation(NamedTuple):
    """Pages wanted for the next pass of one row.

    row             row of the request
    first_position  position of the first query token; pages before its window are released
    num_tokens      raw positions to cover from there on, in every group
    extra           further positions to cover in the groups that draft layers write
    """

    row: int
    first_position: int
    num_tokens: int
    extra: int = 0


class TableChange(NamedTuple):
    """New content of one row of one block table; ``page_ids`` may be read until the next reservation."""

    row: int
    group_id: str
    page_ids: Sequence[int]
    base: int


class CacheManager:
    """One PageAllocator per group, driven as one: an operation happens in all groups or in none.

    specs          groups of the target, in display order
    num_pages      pages of each group, the dummy page 0 included
    max_rows       rows that can hold pages
    draft_groups   ids of the groups that draft layers write; they get the draft reach on top
    """

    def __init__(
        self,
        specs: Iterable[CacheGroupSpec],
        num_pages: Mapping[str, int],
        *,
        max_rows: int,
        draft_groups: Collection[str] = (),
    ) -> None:
        self.specs = tuple(specs)
        self.draft_groups = frozenset(draft_groups)
        _check_groups(self.specs, num_pages, self.draft_groups)
        self.allocators: Mapping[str, PageAllocator] = {
            spec.group_id: PageAllocator(spec, num_pages=num_pages[spec.group_id], max_rows=max_rows)
            for spec in self.specs
        }
        # Pairs of (allocator, whether draft layers write the group): what the loops of every round need.
        self._groups = tuple((a, g in self.draft_groups) for g, a in self.allocators.items())
        self._sliding = tuple(a for a in self.allocators.values() if a.spec.is_sliding)
        self._max_rows = max_rows

    @property
    def num_free(self) -> dict[str, int]:
        """Free pages per group."""
        return {group_id: allocator.num_free for group_id, allocator in self.allocators.items()}

    @property
    def num_failed(self) -> int:
        """Reservations that found too few pages, over all groups."""
        return sum(allocator.num_failed for allocator in self.allocators.values())

    def chunk(self, row: int, first_position: int, num_tokens: int, *, extra: int = 0) -> Reservation:
        """Reservation of a prompt chunk; ``extra`` is ``K - 1`` for the last chunk of a drafted prompt."""
        return Reservation(row, first_position, num_tokens, extra)

    def decode(
        self, row: int, first_position: int, *, width: int, num_draft_tokens: int, in_flight_tokens: int = 0
    ) -> Reservation:
        """Reservation of a verify pass over ``width`` tokens, followed by a draft of ``num_draft_tokens``.

        ``first_position`` is the newest verified length that the host knows. With a round still running it is
        a lower bound: ``in_flight_tokens``, the width of that round, says by how much it may yet grow.
        """
        return Reservation(row, first_position, width + in_flight_tokens, draft_reach(num_draft_tokens))

    def try_reserve(self, requests: Sequence[Reservation]) -> bool:
        """``reserve`` all of ``requests``, of different rows, in this order if every group has pages for all of them.

        Else nothing has happened, and it is False.
        """
        spans = self._spans(requests)
        for allocator, drafted in self._groups:
            if not allocator.has_room(spans[drafted]):
                return False
        for allocator, drafted in self._groups:
            allocator.advance(spans[drafted])
        return True

    def reserve(self, request: Reservation) -> None:
        """Release what left the window and cover the pass, in every group.

        Raises CapacityError, naming the first group that is short; then no page has moved.
        """
        if self.try_reserve([request]):
            return
        spans = self._spans([request])
        for allocator, drafted in self._groups:
            ((row, first_position, target),) = spans[drafted]
            allocator.require(row, first_position=first_position, target=target)
        raise AssertionError("a reservation fails for want of pages only")

    def reserve_chunk(self, row: int, first_position: int, num_tokens: int, *, extra: int = 0) -> None:
        """``reserve`` of ``chunk``."""
        self.reserve(self.chunk(row, first_position, num_tokens, extra=extra))

    def reserve_decode(
        self, row: int, first_position: int, *, width: int, num_draft_tokens: int, in_flight_tokens: int = 0
    ) -> None:
        """``reserve`` of ``decode``."""
        self.reserve(
            self.decode(
                row,
                first_position,
                width=width,
                num_draft_tokens=num_draft_tokens,
                in_flight_tokens=in_flight_tokens,
            )
        )

    def roll_back(self, row: int, committed: int, *, in_flight_tokens: int = 0) -> None:
        """After a decode result or the last prompt chunk: give back the pages that nothing committed uses.

        ``committed`` positions stay, and ``in_flight_tokens`` more for an overlapped round that is running.
        Pages that left the window of a query at ``committed`` go as well. Call it after drafting.
        """
        self.roll_back_rows([(row, committed)], in_flight_tokens=in_flight_tokens)

    def roll_back_rows(self, ends: Sequence[tuple[int, int]], *, in_flight_tokens: int = 0) -> None:
        """``roll_back`` of rows with their committed positions."""
        for allocator, _ in self._groups:
            allocator.settle(ends, in_flight_tokens=in_flight_tokens)

    def release_skipped(self, row: int, committed: int) -> None:
        """After a prompt chunk was launched: give back the pages that no query from ``committed`` on can see.

        The chunk still reads them, so whoever gets them next must write after it (later on the same stream).
        """
        for allocator in self._sliding:
            allocator.release_skipped(row, first_position=committed)

    def release(self, row: int) -> None:
        """Give all pages of a finished or preempted row back."""
        for allocator, _ in self._groups:
            allocator.release(row)

    def take_changes(self) -> list[TableChange]:
        """Block table rows that changed since the last call, each once."""
        return [
            TableChange(row, group_id, pages.page_ids, pages.base)
            for group_id, allocator in self.allocators.items()
            for row, pages in allocator.take_changes()
        ]

    def _spans(self, requests: Sequence[Reservation]) -> tuple[list[Span], list[Span]]:
        """Spans of ``requests`` in groups that draft layers do not write, and in those that they do."""
        plain, drafted = [], []
        for row, first_position, num_tokens, extra in requests:
            assert 0 <= row < self._max_rows, f"row {row} of {self._max_rows}"
            end = first_position + num_tokens
            plain.append((row, first_position, end))
            drafted.append((row, first_position, end + extra))
        return plain, drafted

    def check_integrity(self) -> None:
        """``PageAllocator.check_integrity`` of every group; linear in the number of pages."""
        for allocator in self.allocators.values():
            allocator.check_integrity()


def _check_groups(specs: Sequence[CacheGroupSpec], num_pages: Mapping[str, int], draft_groups: frozenset[str]) -> None:
    ids = [spec.group_id for spec in specs]
    if len(set(ids)) != len(ids):
        raise ConfigError(f"cache groups must have different ids, got {ids}")
    for what, names in (("number of pages", set(num_pages)), ("draft groups", draft_groups)):
        unknown = sorted(names - set(ids))
        if unknown:
            raise ConfigError(f"{what} given for unknown cache groups {unknown}, known are {ids}")
    missing = sorted(set(ids) - set(num_pages))
    if missing:
        raise ConfigError(f"no number of pages for cache groups {missing}")
