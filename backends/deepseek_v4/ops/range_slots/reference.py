"""Slot arithmetic of whole ranges: which rows of the paged buffers a run of positions lives in.

Works on device tensors only and knows nothing of layers. Every function is the range form of the per-token
functions of ``backends.deepseek_v4.ops`` (same rules: no page, no column, or a position below 0 gives -1).

Dimension letters beside those of ``specdec.api``: G groups of consecutive queries that share a table row,
K positions of a range, X scattered positions.
"""

import torch

from specdec.api import GroupTable
from specdec.cache.spec import PAD_SLOT


def range_slots(
    table: GroupTable, reqs_G: torch.Tensor | None, starts_G: torch.Tensor, span: range, rows_per_page: int
) -> torch.Tensor:
    """Slots [G, len(span)] int64 of positions ``starts_G + span`` in a group of one row per token.

    ``reqs_G`` is the table row of each group; None means group g is table row g.
    """
    positions_GK = starts_G.unsqueeze(1) + torch.arange(span.start, span.stop, device=starts_G.device)
    logical_GK = torch.div(positions_GK, rows_per_page, rounding_mode="floor")
    offset_GK = torch.remainder(positions_GK, rows_per_page)
    return _page_slots(table, reqs_G, logical_GK, offset_GK, rows_per_page)


def entry_slots(table: GroupTable, reqs_X: torch.Tensor, entries_X: torch.Tensor, rows_per_page: int) -> torch.Tensor:
    """Slots [X] int64 of compressed rows ``entries_X`` of requests ``reqs_X`` (a negative entry gives -1)."""
    entries_X1 = entries_X.unsqueeze(1)
    logical_X1 = torch.div(entries_X1, rows_per_page, rounding_mode="floor")
    offset_X1 = torch.remainder(entries_X1, rows_per_page)
    return _page_slots(table, reqs_X, logical_X1, offset_X1, rows_per_page).squeeze(1)


def history_slots(table: GroupTable, reqs_G: torch.Tensor | None, num_columns: int, rows_per_page: int) -> torch.Tensor:
    """Slots [G, num_columns * rows_per_page] int64 of the first pages of a full-history group; below 0: no page."""
    pages_GC = table.pages_BC[:, :num_columns]
    if reqs_G is not None:
        pages_GC = pages_GC.index_select(0, reqs_G)
    if pages_GC.shape[1] < num_columns:
        pages_GC = torch.nn.functional.pad(pages_GC, (0, num_columns - pages_GC.shape[1]), value=PAD_SLOT)
    rows_R = torch.arange(rows_per_page, device=pages_GC.device)
    return (pages_GC.unsqueeze(2) * rows_per_page + rows_R).flatten(1)


def _page_slots(
    table: GroupTable,
    reqs_G: torch.Tensor | None,
    logical_GK: torch.Tensor,
    offset_GK: torch.Tensor,
    rows_per_page: int,
) -> torch.Tensor:
    """Slots of rows ``offset_GK`` of logical pages ``logical_GK``; -1 outside of the table or without a page."""
    num_columns = table.pages_BC.shape[1]
    if num_columns == 0:
        return torch.full_like(logical_GK, PAD_SLOT)
    pages_GC, columns_GK = table.pages_BC, logical_GK
    if table.base_B is not None:
        base_G = table.base_B if reqs_G is None else table.base_B.index_select(0, reqs_G)
        columns_GK = logical_GK - base_G.unsqueeze(1)
    if reqs_G is not None:
        pages_GC = pages_GC.index_select(0, reqs_G)
    safe_GK = columns_GK.clamp(0, num_columns - 1)
    # A missing page is -1 in the table and makes a negative slot; every negative slot becomes -1.
    slots_GK = pages_GC.gather(1, safe_GK) * rows_per_page + offset_GK
    return slots_GK.masked_fill_(columns_GK != safe_GK, PAD_SLOT).clamp_(min=PAD_SLOT)
