"""Where the keys of a prompt chunk lie in the gathered workspace; knows nothing of pages.

For a prompt chunk the keys of each request are first gathered into one contiguous stretch of a workspace:
``compressed_rows`` compressed rows, then the raw rows of the chunk and of the window before it. Request i
starts at ``i * request_stride``.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.ops.compressed_slots import visible_rows
from backends.deepseek_v4.ops.page_lookup import expand_requests, request_values
from backends.deepseek_v4.ops.topk_slots import pack_left
from specdec.cache.spec import ceil_div

WIDTH_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillWorkspace:
    """Shape of the gathered keys of a prompt chunk; host integers.

    ratio            raw tokens of a compressed row
    window           sliding window in raw tokens, the query included
    compressed_rows  compressed rows reserved per request (0 for layers without any)
    raw_rows         raw rows reserved per request: the longest ``gather_range``
    """

    ratio: int
    window: int
    compressed_rows: int
    raw_rows: int

    @property
    def request_stride(self) -> int:
        """Rows of the workspace per request."""
        return self.compressed_rows + self.raw_rows


def gather_range(start: int, query_len: int, window: int) -> tuple[int, int]:
    """First raw position and number of raw rows to gather for a chunk that starts at ``start``."""
    before = min(start, window - 1)
    return start - before, query_len + before


def prefill_indices(
    positions_T: torch.Tensor,
    reqs_T: torch.Tensor,
    topk_TK: torch.Tensor,
    gather_starts_B: torch.Tensor,
    workspace: PrefillWorkspace,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Workspace rows that each query attends (int32 [T, X]) and their number (int32 [T]), packed to the left.

    topk_TK          selected compressed rows, the first ``min((p + 1) // ratio, K)`` of them valid; K may be 0
    gather_starts_B  raw position of the first gathered raw row of each request

    Compressed rows come first, in the order of ``topk_TK``, then the window in ascending position. X is
    ``K + window`` rounded up to 128. A padding token has length 0.
    """
    reqs = expand_requests(reqs_T, positions_T.shape[0]).to(torch.int64)
    origins = (reqs * workspace.request_stride).unsqueeze(-1)
    compressed = _compressed_part(positions_T, topk_TK, workspace)
    raw = _raw_part(positions_T, request_values(reqs, gather_starts_B), workspace)
    local = torch.cat([compressed, raw], dim=-1)
    live = (local >= 0) & (reqs >= 0).unsqueeze(-1) & (reqs < gather_starts_B.shape[0]).unsqueeze(-1)
    rows = torch.where(live, local + origins, -1)
    width = ceil_div(rows.shape[-1], WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    return pack_left(torch.nn.functional.pad(rows, (0, width - rows.shape[-1]), value=-1))


def _compressed_part(positions_T: torch.Tensor, topk_TK: torch.Tensor, workspace: PrefillWorkspace) -> torch.Tensor:
    """Compressed rows relative to the request's stretch, -1 where there is none."""
    order = torch.arange(topk_TK.shape[-1], device=topk_TK.device)
    chosen = topk_TK.to(torch.int64)
    usable = (order < visible_rows(positions_T, workspace.ratio).unsqueeze(-1)) & (chosen >= 0)
    return torch.where(usable & (chosen < workspace.compressed_rows), chosen, -1)


def _raw_part(positions_T: torch.Tensor, starts_T: torch.Tensor, workspace: PrefillWorkspace) -> torch.Tensor:
    """Window rows relative to the request's stretch, -1 where there is none."""
    positions = positions_T.to(torch.int64).unsqueeze(-1)
    order = torch.arange(workspace.window, device=positions.device)
    keys = (positions - workspace.window + 1).clamp(min=0) + order
    offsets = keys - starts_T.unsqueeze(-1)
    usable = (keys <= positions) & (offsets >= 0) & (offsets < workspace.raw_rows)
    return torch.where(usable, offsets + workspace.compressed_rows, -1)
