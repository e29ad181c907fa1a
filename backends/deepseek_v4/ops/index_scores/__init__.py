"""index_scores: how much each token of a CSA layer wants each compressed row."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.index_scores import reference
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import IndexRowFormat
from backends.deepseek_v4.rows.index_fp8 import Fp8IndexCodec
from backends.deepseek_v4.rows.split_page import SplitRows
from backends.vendor import deep_gemm
from specdec.api import GroupTable

__all__ = ["implementation", "index_scores"]


def implementation(rows: IndexRowFormat, num_heads: int, device: torch.device, kernels: Kernels) -> str:
    """Which code scores the rows: reference, triton or deep_gemm.

    DeepGEMM serves fp8 rows under ``Kernels.FLASH_MLA`` where the package, the GPU and the sizes allow it; Triton
    serves everything else.
    """
    if kernels is Kernels.REFERENCE:
        return "reference"
    fp8 = isinstance(rows, SplitRows) and isinstance(rows.codec, Fp8IndexCodec)
    if kernels is Kernels.FLASH_MLA and fp8:
        if deep_gemm.fits(num_heads, rows.width, rows.rows_per_page) and deep_gemm.usable(device):
            return "deep_gemm"
    return "triton"


def index_scores(
    q_TJD: torch.Tensor,
    weights_TJ: torch.Tensor,
    keys: torch.Tensor,
    rows: IndexRowFormat,
    table: GroupTable,
    indices: PassIndices,
    *,
    topk: int,
    num_columns: int,
    kernels: Kernels,
) -> torch.Tensor:
    """Scores float32 [T, C] of the rows of each token's request, C = ``num_columns``.

    q_TJD       queries as ``index_queries`` returns them, contiguous
    weights_TJ  float32 weight of each head, both scale factors folded in
    keys        buffer of the indexer's keys in the format ``rows``
    table       block table of the compressed CSA group (full history: no base)
    indices     of the pass; ``visible[CSA]`` and ``reqs_T`` are read
    topk        tokens that see at most so many rows need no scores and get none

    score = sum over heads of weight * relu(q . key), products and sums in float32. Columns at or beyond what the
    token sees, and all columns of a token that needs none, are unspecified.
    """
    assert table.base_B is None, "compressed rows have full history"
    chosen = implementation(rows, q_TJD.shape[1], q_TJD.device, kernels)
    if chosen == "reference":
        return reference.index_scores(q_TJD, weights_TJ, keys, rows, table, indices, num_columns=num_columns)
    if chosen == "deep_gemm":
        from backends.deepseek_v4.ops.index_scores import paged

        return paged.index_scores(q_TJD, weights_TJ, keys, rows, table, indices, num_columns=num_columns)
    from backends.deepseek_v4.ops.index_scores import kernel

    return kernel.index_scores(q_TJD, weights_TJ, keys, rows, table, indices, topk=topk, num_columns=num_columns)
