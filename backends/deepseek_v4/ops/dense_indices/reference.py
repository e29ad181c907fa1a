"""All visible compressed rows of a query, as slots or as local indices; knows nothing of attention."""

import torch

from backends.deepseek_v4.ops.compressed_slots import visible_rows
from backends.deepseek_v4.ops.page_lookup import expand_requests
from backends.deepseek_v4.ops.slot_mapping import slots_of_rows
from specdec.cache.spec import ceil_div

WIDTH_MULTIPLE = 128


def dense_width(max_context: int, ratio: int) -> int:
    """Width of a dense index row that holds every compressed row of ``max_context`` raw tokens."""
    return ceil_div(max(1, ceil_div(max_context, ratio)), WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def dense_local_indices(positions_T: torch.Tensor, ratio: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row indices ``0 .. len - 1`` of each query (int32 [T, width], then -1) and ``len`` (int32 [T]).

    ``len = min((p + 1) // ratio, width)``, and 0 for negative positions.
    """
    lens = visible_rows(positions_T, ratio).clamp(max=width)
    rows = torch.arange(width, device=positions_T.device)
    return torch.where(rows < lens.unsqueeze(-1), rows, -1).to(torch.int32), lens.to(torch.int32)


def dense_indices(
    positions_T: torch.Tensor,
    reqs_T: torch.Tensor,
    pages_BC: torch.Tensor,
    ratio: int,
    rows_per_page: int,
    width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of all compressed rows visible to each query (int32 [T, width]) and their number (int32 [T]).

    Entry k below the length is the slot of row k, -1 where its page is missing; entries beyond are -1.
    A padding token (request outside of the table, or negative position) has length 0 and a row of -1.
    """
    reqs = expand_requests(reqs_T, positions_T.shape[0])
    rows, lens = dense_local_indices(positions_T, ratio, width)
    slots = slots_of_rows(rows, reqs.unsqueeze(-1), pages_BC, None, rows_per_page)
    live = (reqs >= 0) & (reqs < pages_BC.shape[0])
    return slots.to(torch.int32), torch.where(live, lens, 0)
