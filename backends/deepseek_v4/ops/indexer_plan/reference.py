"""What the paged indexer scores of each query read: context lengths and pages; knows nothing of scoring.

For serving engines whose kernels take these of each query; ``index_scores`` finds them in the block tables.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.ops.compressed_slots import visible_rows
from backends.deepseek_v4.ops.page_lookup import expand_requests, page_lookup
from specdec.cache.spec import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerPlan:
    """Input of the paged indexer scores.

    context_lens_T1  int32 [T, 1] compressed rows to score
    pages_TM         int32 [T, M] physical pages of the token's request, 0 where there is none
    max_context_len  largest context length that the plan can hold, host integer
    """

    context_lens_T1: torch.Tensor
    pages_TM: torch.Tensor
    max_context_len: int

    @property
    def max_blocks(self) -> int:
        """Pages per token (M)."""
        return self.pages_TM.shape[1]


def indexer_max_len(num_columns: int, *, ratio: int, rows_per_page: int, max_context: int | None = None) -> int:
    """Most compressed rows of a request: those of ``max_context`` raw tokens, else all that the table can hold."""
    if max_context is not None:
        return ceil_div(max_context, ratio)
    return num_columns * rows_per_page


def indexer_plan(
    positions_T: torch.Tensor,
    reqs_T: torch.Tensor,
    pages_BC: torch.Tensor,
    ratio: int,
    rows_per_page: int,
    max_len: int,
) -> IndexerPlan:
    """Plan the scores of queries at ``positions_T`` over the compressed rows that they see.

    ``max_len`` is in compressed rows (``indexer_max_len``). A context ends before the first missing page. A
    padding token (request outside of the table) has context length 0 and pages 0.
    """
    reqs = expand_requests(reqs_T, positions_T.shape[0]).unsqueeze(-1)
    columns = torch.arange(max(1, ceil_div(max_len, rows_per_page)), device=positions_T.device)
    pages = page_lookup(reqs, columns, pages_BC)
    num_present = (pages >= 0).to(torch.int64).cumprod(-1).sum(-1)
    visible = visible_rows(positions_T, ratio)
    context_lens = torch.minimum(visible, num_present * rows_per_page)
    return IndexerPlan(
        context_lens_T1=context_lens.unsqueeze(-1).to(torch.int32),
        pages_TM=pages.clamp(min=0).to(torch.int32),
        max_context_len=max_len,
    )
