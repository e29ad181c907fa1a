"""FewRowsCompressor: pools few windows of float32 state rows on the CPU; same mathematics as ``Compressor.pool``.

In NumPy: a pass closes a window or two, for which some twenty small torch operations cost mostly their dispatch.
"""

import numpy as np
import torch

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.rope import Rope


class FewRowsCompressor:
    """One compressor's pooling; copies the weight of its norm."""

    def __init__(self, compressor: Compressor) -> None:
        self._plain = compressor
        self._weight_D = compressor.norm.weight.detach().float().numpy().copy()
        self._eps = compressor.norm.eps

    def pool(self, rows: torch.Tensor, valid: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Compressed rows, float32 [X, d], normalised and rotated; see ``Compressor.pool``."""
        if not valid.numpy().all():
            return self._plain.pool(rows, valid, rope)
        values_XWD, scores_XWD = self._own_parts(rows.numpy())
        weights_XWD = np.exp(scores_XWD - np.maximum.reduce(scores_XWD, axis=1, keepdims=True))
        pooled_XD = np.add.reduce(weights_XWD * values_XWD, axis=1) / np.add.reduce(weights_XWD, axis=1)
        mean_X1 = np.add.reduce(pooled_XD * pooled_XD, axis=1, keepdims=True) / pooled_XD.shape[1]
        pooled_XD *= self._weight_D / np.sqrt(mean_X1 + self._eps)
        turning = pooled_XD[:, -2 * rope.cos.shape[-1] :].view(np.complex64)
        turning *= torch.complex(rope.cos, rope.sin).numpy()
        return torch.from_numpy(pooled_XD)

    def _own_parts(self, rows_XWF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and scores [X, W, d]; where windows overlap, the first half of the slots uses its first channels."""
        dim, ratio = self._plain.head_dim, self._plain.ratio
        if not self._plain.overlaps:
            return rows_XWF[..., :dim], rows_XWF[..., dim:]
        earlier, later = rows_XWF[:, :ratio], rows_XWF[:, ratio:]
        values = np.concatenate((earlier[..., :dim], later[..., dim : 2 * dim]), axis=1)
        return values, np.concatenate((earlier[..., 2 * dim : 3 * dim], later[..., 3 * dim :]), axis=1)
