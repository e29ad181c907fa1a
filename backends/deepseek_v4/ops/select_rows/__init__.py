"""select_rows: which compressed rows a token of a CSA layer attends, as slots."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.select_rows import reference
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from specdec.api import GroupTable

__all__ = ["select_rows"]


def select_rows(
    scores_TC: torch.Tensor,
    indices: PassIndices,
    table: GroupTable,
    rows_per_page: int,
    *,
    topk: int,
    kernels: Kernels,
) -> SlotList:
    """Slots of the ``topk`` rows with the largest scores of each token, in order of the rows.

    scores_TC      float32, column c scores row c of the token's request; columns that the token does not see are
                   ignored, and so are all columns where it sees at most ``topk`` rows: then it gets all of them
    indices        of the pass; ``visible[CSA]`` and ``reqs_T`` are read
    table          block table of the compressed CSA group (full history: no base)
    rows_per_page  rows of a page of that group

    Equal scores (0.0 and -0.0 are equal) go to the lowest row; NaN is larger than every number, as for
    ``torch.sort``. Rows without a page are dropped. Columns: ``topk`` rounded up to a multiple of 64.
    """
    assert table.base_B is None, "compressed rows have full history"
    if kernels is Kernels.REFERENCE:
        return reference.select_rows(scores_TC, indices, table, rows_per_page, topk=topk)
    from backends.deepseek_v4.ops.select_rows import kernel

    return kernel.select_rows(scores_TC, indices, table, rows_per_page, topk=topk)
