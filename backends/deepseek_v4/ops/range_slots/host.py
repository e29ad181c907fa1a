"""The reference's functions in NumPy, for tables on the CPU: a small call takes a fraction of torch's time.

Letters: see ``reference``.
"""

import numpy as np
import torch

from specdec.api import GroupTable
from specdec.cache.spec import PAD_SLOT


def range_slots(
    table: GroupTable, reqs_G: torch.Tensor | None, starts_G: torch.Tensor, span: range, rows_per_page: int
) -> torch.Tensor:
    """See ``reference.range_slots``."""
    positions_GK = starts_G.numpy()[:, None] + np.arange(span.start, span.stop)
    return torch.from_numpy(_page_slots(table, reqs_G, positions_GK, rows_per_page))


def entry_slots(table: GroupTable, reqs_X: torch.Tensor, entries_X: torch.Tensor, rows_per_page: int) -> torch.Tensor:
    """See ``reference.entry_slots``."""
    return torch.from_numpy(_page_slots(table, reqs_X, entries_X.numpy()[:, None], rows_per_page)[:, 0])


def history_slots(table: GroupTable, reqs_G: torch.Tensor | None, num_columns: int, rows_per_page: int) -> torch.Tensor:
    """See ``reference.history_slots``."""
    known_GC = _rows(table.pages_BC, reqs_G)[:, :num_columns]
    pages_GC = np.full((len(known_GC), num_columns), PAD_SLOT, dtype=np.int64)
    pages_GC[:, : known_GC.shape[1]] = known_GC
    slots_GCR = pages_GC[:, :, None] * rows_per_page + np.arange(rows_per_page)
    return torch.from_numpy(slots_GCR.reshape(len(known_GC), -1))


def _page_slots(table: GroupTable, reqs_G: torch.Tensor | None, rows_GK: np.ndarray, rows_per_page: int) -> np.ndarray:
    """Slots of rows counted from the start of a request; -1 outside of the table or without a page."""
    pages_GC = _rows(table.pages_BC, reqs_G)
    num_groups, num_columns = pages_GC.shape
    if num_columns == 0:
        return np.full(rows_GK.shape, PAD_SLOT, dtype=np.int64)
    logical_GK = rows_GK // rows_per_page
    columns_GK = logical_GK if table.base_B is None else logical_GK - _rows(table.base_B, reqs_G)[:, None]
    safe_GK = np.minimum(np.maximum(columns_GK, 0), num_columns - 1)
    page_GK = pages_GC[np.arange(num_groups)[:, None], safe_GK].astype(np.int64)
    slots_GK = page_GK * rows_per_page + (rows_GK - logical_GK * rows_per_page)
    slots_GK[(columns_GK != safe_GK) | (page_GK < 0)] = PAD_SLOT
    return slots_GK


def _rows(values_BX: torch.Tensor, reqs_G: torch.Tensor | None) -> np.ndarray:
    values = values_BX.numpy()
    return values if reqs_G is None else values[reqs_G.numpy()]
