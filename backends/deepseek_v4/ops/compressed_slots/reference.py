"""Token positions -> slots of the compressed rows that they complete; knows nothing of compression itself."""

import torch

from backends.deepseek_v4.ops.page_lookup import expand_requests
from backends.deepseek_v4.ops.slot_mapping import slots_of_rows
from specdec.checks import positive_int


def compressed_slots(
    positions_T: torch.Tensor, reqs_T: torch.Tensor, pages_BC: torch.Tensor, ratio: int, rows_per_page: int
) -> torch.Tensor:
    """Write slot (int64 [T]) of the compressed row that closes at each position; -1 elsewhere.

    Only a boundary position, ``(p + 1) % ratio == 0``, closes a row, the one of index ``p // ratio``.
    Compressed groups keep the full history, so there is no base. ``reqs_T`` as in ``slot_mapping``.
    Raises MetadataError when it cannot be expanded, ConfigError for sizes below 1.
    """
    positive_int("ratio", ratio)
    positive_int("rows_per_page", rows_per_page)
    reqs = expand_requests(reqs_T, positions_T.shape[0])
    slots = slots_of_rows(positions_T // ratio, reqs, pages_BC, None, rows_per_page)
    return torch.where((positions_T + 1) % ratio == 0, slots, -1)


def visible_rows(positions_T: torch.Tensor, ratio: int) -> torch.Tensor:
    """Compressed rows that a query at each position may see, int64: ``(p + 1) // ratio``, at least 0."""
    return ((positions_T + 1) // ratio).clamp(min=0).to(torch.int64)
