"""The selection in plain torch: a stable sort of the scores."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.indexer import select_topk
from backends.deepseek_v4.ops.topk_slots import topk_slots
from backends.deepseek_v4.pass_values import SLOT_COLUMNS, PassIndices, SlotList
from specdec.api import GroupTable
from specdec.cache.spec import ceil_div


def select_rows(
    scores_TC: torch.Tensor, indices: PassIndices, table: GroupTable, rows_per_page: int, *, topk: int
) -> SlotList:
    """See the operator."""
    column_C = torch.arange(scores_TC.shape[1], device=scores_TC.device)
    visible_TC = column_C < indices.visible[AttentionKind.CSA].unsqueeze(1)
    rows_Tk = select_topk(scores_TC, topk, visible_TC)
    slots_Tk, lens_T = topk_slots(rows_Tk, indices.reqs_T, table.pages_BC, rows_per_page)
    spare = ceil_div(topk, SLOT_COLUMNS) * SLOT_COLUMNS - topk
    return SlotList(slots_TK=torch.nn.functional.pad(slots_Tk, (0, spare), value=-1), lens_T=lens_T)
