"""Token positions -> slots of one cache group; knows nothing of what is stored there.

A slot is ``page * rows_per_page + row``; -1 means "do not write" or "nothing there".
"""

import torch

from backends.deepseek_v4.ops.page_lookup import expand_requests, page_lookup, request_values
from specdec.checks import positive_int
from specdec.errors import MetadataError


def slots_of_rows(
    rows_X: torch.Tensor,
    reqs_X: torch.Tensor,
    pages_BC: torch.Tensor,
    base_B: torch.Tensor | None,
    rows_per_page: int,
) -> torch.Tensor:
    """Slots (int64) of logical rows of a group; -1 for negative rows and missing pages.

    ``reqs_X`` broadcasts against ``rows_X``. ``base_B`` is the logical page of column 0, never negative (None:
    full history); raises MetadataError when it has another number of requests than the table.
    """
    columns = rows_X // rows_per_page
    if base_B is not None:
        if base_B.shape[0] != pages_BC.shape[0]:
            raise MetadataError(f"base_B has {base_B.shape[0]} requests but the block table has {pages_BC.shape[0]}")
        columns = columns - request_values(reqs_X, base_B)
    pages = page_lookup(reqs_X, columns, pages_BC)
    return torch.where(pages >= 0, pages * rows_per_page + rows_X % rows_per_page, -1)


def slot_mapping(
    positions_T: torch.Tensor,
    reqs_T: torch.Tensor,
    pages_BC: torch.Tensor,
    base_B: torch.Tensor | None,
    rows_per_page: int,
    entry_stride: int = 1,
) -> torch.Tensor:
    """Slot (int64 [T]) of the row that holds each raw position; -1 for padding and missing pages.

    positions_T   raw positions, int32 or int64
    reqs_T        batch index of each token (-1: padding), or a shorter vector that divides T
    pages_BC      int32 block table
    base_B        int32 logical page of column 0 for sliding groups, None for full history
    rows_per_page, entry_stride   rows of a page, raw tokens of a row

    Raises MetadataError when ``reqs_T`` cannot be expanded to the positions, ConfigError for sizes below 1.
    """
    positive_int("rows_per_page", rows_per_page)
    positive_int("entry_stride", entry_stride)
    reqs = expand_requests(reqs_T, positions_T.shape[0])
    rows = positions_T if entry_stride == 1 else positions_T // entry_stride
    return slots_of_rows(rows, reqs, pages_BC, base_B, rows_per_page)


def mask_slots(slots_T: torch.Tensor, valid_R: torch.Tensor | None, *, capacity: int) -> torch.Tensor:
    """Slots safe to write: -1 for padding, for any negative slot and for slots at or beyond ``capacity``.

    ``valid_R`` (bool, None: all valid) has an entry per token or per request. Same dtype and shape as given.
    """
    keep = (slots_T >= 0) & (slots_T < capacity)
    if valid_R is not None:
        keep &= expand_requests(valid_R, slots_T.shape[0])
    return torch.where(keep, slots_T, -1)
