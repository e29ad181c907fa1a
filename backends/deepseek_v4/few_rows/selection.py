"""Selection of compressed rows for few queries on the CPU, as ``Indexer.scores`` and ``select_topk`` have it."""

from collections.abc import Sequence

import numpy as np
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.indexer import select_topk
from backends.deepseek_v4.plan_types import Segment

# Up to this many scores a sort of Python floats is faster.
FEW_SCORES = 512


def index_scores(q_GMJD: torch.Tensor, weights_GMJ: torch.Tensor, keys_GCD: torch.Tensor) -> torch.Tensor:
    """Scores, float32 [G, M, C]: see ``Indexer.scores``; heads are added up by a product."""
    num_groups, width, num_heads = weights_GMJ.shape
    products_GQC = torch.bmm(q_GMJD.flatten(1, 2), keys_GCD.to(q_GMJD.dtype).transpose(1, 2)).relu_()
    products_XJC = products_GQC.view(num_groups * width, num_heads, -1)
    return torch.bmm(weights_GMJ.reshape(-1, 1, num_heads), products_XJC).view(num_groups, width, -1)


def visible_counts(segment: Segment) -> list[int] | None:
    """How many compressed rows each query of a segment sees, the first ones; None where nothing is selected."""
    return segment.compressed[AttentionKind.CSA].visible_GMC.sum(-1).flatten().tolist() if segment.selects else None


def select_first(scores_GMC: torch.Tensor, k: int, counts: Sequence[int]) -> torch.Tensor:
    """``indexer.select_topk`` where every query sees its first rows, as many as ``counts`` says."""
    num_groups, width, num_rows = scores_GMC.shape
    if scores_GMC.numel() > FEW_SCORES:
        counts_GM1 = torch.tensor(counts).view(num_groups, width, 1)
        return select_topk(scores_GMC, k, torch.arange(num_rows) < counts_GM1)
    packed = np.full((num_groups * width, k), -1, dtype=np.int64)
    for line, scores, count in zip(packed, scores_GMC.flatten(0, 1).tolist(), counts, strict=True):
        # Python's sort is stable, also in reverse: equal scores are taken from the lowest index on.
        order = sorted(range(count), key=scores.__getitem__, reverse=True)[:k]
        line[: len(order)] = sorted(order)
    return torch.from_numpy(packed).view(num_groups, width, k)
