"""range_slots: slots of whole ranges of positions; which implementation."""

import torch

from backends.deepseek_v4.ops.range_slots import host, reference
from specdec.api import GroupTable

__all__ = ["entry_slots", "history_slots", "range_slots"]


def range_slots(
    table: GroupTable, reqs_G: torch.Tensor | None, starts_G: torch.Tensor, span: range, rows_per_page: int
) -> torch.Tensor:
    """Slots [G, len(span)] int64 of positions ``starts_G + span`` in a group of one row per token.

    ``reqs_G`` is the table row of each group; None means group g is table row g.
    """
    return _chosen(table).range_slots(table, reqs_G, starts_G, span, rows_per_page)


def entry_slots(table: GroupTable, reqs_X: torch.Tensor, entries_X: torch.Tensor, rows_per_page: int) -> torch.Tensor:
    """Slots [X] int64 of compressed rows ``entries_X`` of requests ``reqs_X`` (a negative entry gives -1)."""
    return _chosen(table).entry_slots(table, reqs_X, entries_X, rows_per_page)


def history_slots(table: GroupTable, reqs_G: torch.Tensor | None, num_columns: int, rows_per_page: int) -> torch.Tensor:
    """Slots [G, num_columns * rows_per_page] int64 of the first pages of a full-history group; below 0: no page."""
    return _chosen(table).history_slots(table, reqs_G, num_columns, rows_per_page)


def _chosen(table: GroupTable):
    """NumPy on the CPU, where it needs a fraction of the time for a call; else torch, which reads nothing back."""
    return host if table.pages_BC.device.type == "cpu" else reference
