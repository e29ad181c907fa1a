"""The indexer's scores in plain torch, as ``Indexer.scores`` with products in float32."""

import torch

from backends.deepseek_v4.ops.slot_mapping import slots_of_rows
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import IndexRowFormat
from specdec.api import GroupTable


def index_scores(
    q_TJD: torch.Tensor,
    weights_TJ: torch.Tensor,
    keys: torch.Tensor,
    rows: IndexRowFormat,
    table: GroupTable,
    indices: PassIndices,
    *,
    num_columns: int,
) -> torch.Tensor:
    """See the operator."""
    column_C = torch.arange(num_columns, device=q_TJD.device)
    scores_TC = torch.zeros(q_TJD.shape[0], num_columns, device=q_TJD.device)
    for t in range(q_TJD.shape[0]):
        slots_C = slots_of_rows(column_C, indices.reqs_T[t], table.pages_BC, None, rows.rows_per_page)
        keys_CD = rows.read(keys, slots_C).to(q_TJD.dtype).float()
        products_JC = q_TJD[t].float() @ keys_CD.T
        scores_TC[t] = (products_JC.relu() * weights_TJ[t].unsqueeze(1)).sum(0)
    return scores_TC
