"""Selected compressed rows -> slots, packed to the left; knows nothing of how they were selected."""

import torch

from backends.deepseek_v4.ops.page_lookup import expand_requests
from backends.deepseek_v4.ops.slot_mapping import slots_of_rows


def pack_left(indices_TK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the non-negative entries of each row to its left, in order; the rest becomes -1.

    Returns int32 [T, K] and the number of packed entries, int32 [T]. Attention kernels keep the leftmost
    ``length`` entries, so a gap would drop a valid key from the tail.
    """
    width = indices_TK.shape[-1]
    valid = indices_TK >= 0
    targets = torch.where(valid, valid.cumsum(-1) - 1, width)
    packed = torch.full_like(indices_TK, -1, dtype=torch.int32)
    packed = torch.nn.functional.pad(packed, (0, 1), value=-1)
    packed.scatter_(-1, targets, indices_TK.to(torch.int32))
    return packed[:, :width], valid.sum(-1, dtype=torch.int32)


def topk_slots(
    topk_TK: torch.Tensor, reqs_T: torch.Tensor, pages_BC: torch.Tensor, rows_per_page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the compressed rows ``topk_TK`` of each token's request, packed to the left, and their number.

    topk_TK  integer row indices relative to the request's first compressed row; negative entries are none

    Returns int32 [T, K] and int32 [T]. Entries whose page is missing are dropped; a padding token has length 0.
    """
    reqs = expand_requests(reqs_T, topk_TK.shape[0]).unsqueeze(-1)
    return pack_left(slots_of_rows(topk_TK, reqs, pages_BC, None, rows_per_page))
