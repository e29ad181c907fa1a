"""Slots of the raw tokens that a position looks back on; knows nothing of attention or compression."""

import torch

from backends.deepseek_v4.ops.page_lookup import expand_requests
from backends.deepseek_v4.ops.slot_mapping import slots_of_rows


def window_indices(
    positions_T: torch.Tensor,
    reqs_T: torch.Tensor,
    pages_BC: torch.Tensor,
    base_B: torch.Tensor | None,
    window: int,
    rows_per_page: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sliding-window keys of each query: slots (int32 [T, window]) in ascending position, and their number.

    The keys of a query at p are the raw positions ``max(0, p - window + 1) .. p``. Entry k is the slot of the
    k-th of them, -1 where its page is missing; entries at or beyond the length (int32 [T]) are -1. A padding
    token (request -1 or negative position) has length 0 and a row of -1.
    """
    reqs = expand_requests(reqs_T, positions_T.shape[0]).unsqueeze(-1)
    positions = positions_T.to(torch.int64).unsqueeze(-1)
    keys = (positions - window + 1).clamp(min=0) + torch.arange(window, device=positions_T.device)
    slots = slots_of_rows(keys, reqs, pages_BC, base_B, rows_per_page)
    live = (reqs >= 0) & (reqs < pages_BC.shape[0]) & (positions >= 0)
    lens = torch.where(live, positions + 1, 0).clamp(max=window)
    inside = live & (keys <= positions)
    return torch.where(inside, slots, -1).to(torch.int32), lens.squeeze(-1).to(torch.int32)


def window_state_slots(
    positions_X: torch.Tensor,
    reqs_X: torch.Tensor,
    pages_BC: torch.Tensor,
    base_B: torch.Tensor | None,
    window: int,
    rows_per_page: int,
) -> torch.Tensor:
    """Slots (int64 [X, window]) of the state rows at positions ``p - window + 1 .. p``, oldest first.

    Unlike ``window_indices`` entry k always belongs to position ``p - window + 1 + k``, because a compressor's
    channels depend on the place in the window; it is -1 where that is negative or its page is missing.
    """
    reqs = expand_requests(reqs_X, positions_X.shape[0]).unsqueeze(-1)
    offsets = torch.arange(1 - window, 1, device=positions_X.device)
    return slots_of_rows(positions_X.unsqueeze(-1) + offsets, reqs, pages_BC, base_B, rows_per_page)
