"""Slots of contiguous stretches of requests' rows, for gathering them; knows nothing of what is stored there.

For serving engines that score prompts over gathered indexer rows (``prefill_chunks``); passes here score through pages.
"""

import torch

from backends.deepseek_v4.ops.slot_mapping import slots_of_rows


def gather_slots(
    pages_BC: torch.Tensor,
    base_B: torch.Tensor | None,
    cumulative_B1: torch.Tensor,
    rows_per_page: int,
    num_rows: int,
    first_rows_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slots (int64 [num_rows]) of the requests' rows one request after the other.

    cumulative_B1  [B + 1] exclusive prefix sum of the rows to gather per request
    num_rows       length of the result; entries at or beyond ``cumulative_B1[-1]`` are -1
    first_rows_B   logical row at which each request's stretch begins (None: 0)
    """
    num_reqs = pages_BC.shape[0]
    places = torch.arange(num_rows, device=pages_BC.device)
    if num_reqs == 0:
        return torch.full_like(places, -1)
    cumulative = cumulative_B1.to(torch.int64)
    # The request of a place is the number of stretches that end at or before it; B means "past the end".
    reqs = torch.searchsorted(cumulative[1:].contiguous(), places, right=True)
    rows = places - cumulative[reqs]
    if first_rows_B is not None:
        rows = rows + first_rows_B.to(torch.int64)[reqs.clamp(max=num_reqs - 1)]
    return slots_of_rows(rows, reqs, pages_BC, base_B, rows_per_page)
