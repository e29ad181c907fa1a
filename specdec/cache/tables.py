"""BlockTables: the block tables of all groups as one persistent tensor; shared by target and draft.

Knows nothing of allocation: it is told what changed. The tables of a row lie side by side, so that all
changes of a row reach the device in one copy; the tables of a group are a strided view.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import torch

from specdec.api import GroupTable
from specdec.cache.allocator import TableChange
from specdec.cache.spec import CacheGroupSpec
from specdec.checks import positive_int
from specdec.errors import CapacityError, ConfigError, MetadataError

NO_PAGE = -1


class BlockTables:
    """Writes host page lists into device tables and shows them in batch order.

    Never reallocated, so recorded graphs may read it. The host table is the only thing that is compared or
    edited; nothing is read back from the device. For CUDA it is pinned, so that a copy costs the host no more than its
    launch. Behind the rows of requests comes ``sink_row``, which never has a page: padding requests point at it.
    """

    def __init__(
        self,
        specs: Iterable[CacheGroupSpec],
        columns: Mapping[str, int],
        *,
        max_rows: int,
        device: torch.device,
    ) -> None:
        self.specs = tuple(specs)
        self.max_rows = positive_int("max_rows", max_rows)
        missing = [spec.group_id for spec in self.specs if spec.group_id not in columns]
        if missing:
            raise ConfigError(f"no number of table columns for cache groups {missing}")
        self._widths = [positive_int(f"{s.group_id}: columns", columns[s.group_id]) for s in self.specs]
        self._sliding = [spec.group_id for spec in self.specs if spec.is_sliding]
        starts = tuple(accumulate(self._widths, initial=0))
        # Behind the tables come the bases of the sliding groups, one column each.
        base_columns = {group_id: starts[-1] + i for i, group_id in enumerate(self._sliding)}
        # Of each group: first column, number of columns, and column of the base if there is one.
        self._columns = {
            spec.group_id: (start, width, base_columns.get(spec.group_id))
            for spec, start, width in zip(self.specs, starts, self._widths, strict=False)
        }
        width = starts[-1] + len(self._sliding)
        self.sink_row = max_rows
        is_cuda = device.type == "cuda"
        self._host = torch.full((max_rows + 1, width), NO_PAGE, dtype=torch.int32, pin_memory=is_cuda)
        self._host[:, starts[-1] :] = 0
        # Changes are a few integers each, which a memoryview takes faster than an array does.
        self._lines = [memoryview(line) for line in self._host.numpy()]
        self._device = self._host.to(device, copy=True)
        # Behind the last copy, which reads the host table after ``write`` has returned.
        self._copied = torch.cuda.Event() if is_cuda else None
        self._filled = [dict.fromkeys(self._columns, 0) for _ in range(max_rows)]
        self._shown: tuple[tuple[int, ...], dict[str, GroupTable]] | None = None

    def write(self, changes: Iterable[TableChange]) -> None:
        """Replace the changed table rows in place; columns without a page become -1.

        One copy brings all rows from the first to the last changed one to the device; it may still run when this
        returns. Raises CapacityError when a row has more pages than the table has columns.
        """
        if self._copied is not None:
            # A copy in flight must not see what is written now; after a round there is none.
            self._copied.synchronize()
        first, end = self.max_rows, 0
        for row, group_id, page_ids, base in changes:
            self._write_host(row, group_id, page_ids, base)
            first, end = min(first, row), max(end, row + 1)
        if first >= end:
            return
        self._device[first:end].copy_(self._host[first:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device.device))

    def view(self, rows: Sequence[int]) -> dict[str, GroupTable]:
        """Tables of ``rows`` in batch order: ``pages_BC`` int32, and ``base_B`` int32 for sliding groups.

        Consecutive ascending rows give views that follow later writes; other rows give a copy. Either is
        valid for the round. A view may be strided.
        """
        rows = tuple(rows)
        if self._shown is not None and self._shown[0] == rows:
            return self._shown[1]
        if not all(0 <= row < self.max_rows for row in rows):
            raise MetadataError(f"rows must lie in 0..{self.max_rows - 1}, got {rows}")
        if rows and rows == tuple(range(rows[0], rows[0] + len(rows))):
            tables = self._split(self._device[rows[0] : rows[0] + len(rows)])
            self._shown = (rows, tables)
            return tables
        index_B = torch.tensor(rows, dtype=torch.int64, device=self._device.device)
        return self._split(self._device.index_select(0, index_B))

    def gather(self, rows_B: torch.Tensor) -> dict[str, GroupTable]:
        """Tables of the rows int64 [B] on the device, in that order; one device operation, so it can be recorded."""
        return self._split(self._device.index_select(0, rows_B))

    def _write_host(self, row: int, group_id: str, page_ids: Sequence[int], base: int) -> None:
        start, width, base_column = self._columns[group_id]
        count, filled, line = len(page_ids), self._filled[row], self._lines[row]
        if count > width:
            raise CapacityError(f"{group_id}: row {row} has {count} pages, its table has {width} columns")
        for column, page in enumerate(page_ids, start):
            line[column] = page
        for column in range(start + count, start + filled[group_id]):
            line[column] = NO_PAGE
        filled[group_id] = count
        if base_column is not None:
            line[base_column] = base

    def _split(self, lines_BX: torch.Tensor) -> dict[str, GroupTable]:
        parts = torch.split(lines_BX, [*self._widths, len(self._sliding)], dim=1)
        bases = dict(zip(self._sliding, parts[-1].unbind(1), strict=True))
        return {
            spec.group_id: GroupTable(pages_BC=part, base_B=bases.get(spec.group_id))
            for spec, part in zip(self.specs, parts, strict=False)
        }


def from_ragged(
    pages: Mapping[str, Sequence[Sequence[int]]],
    *,
    num_reqs: int,
    bases: Mapping[str, Sequence[int]],
    device: torch.device,
) -> dict[str, GroupTable]:
    """Tables from ragged page lists, padded with -1 to the longest row; for tests and one-off passes.

    A group without rows is left out; a group of empty rows has shape ``[num_reqs, 0]``. ``bases`` holds the
    sliding groups. Raises MetadataError when a group has another number of rows or bases than ``num_reqs``.
    """
    tables = {}
    for group_id, rows in pages.items():
        if not rows:
            continue
        base = bases.get(group_id)
        for what, count in (("page rows", len(rows)), ("bases", num_reqs if base is None else len(base))):
            if count != num_reqs:
                raise MetadataError(f"{group_id}: {count} {what} for {num_reqs} requests")
        columns = max(len(row) for row in rows)
        padded = [[*row, *[NO_PAGE] * (columns - len(row))] for row in rows]
        pages_BC = torch.tensor(padded, dtype=torch.int32, device=device).reshape(num_reqs, columns)
        base_B = None if base is None else torch.tensor(base, dtype=torch.int32, device=device)
        tables[group_id] = GroupTable(pages_BC=pages_BC, base_B=base_B)
    return tables
