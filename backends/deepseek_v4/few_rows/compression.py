"""FewRowsCompressor: pools few windows of float32 state rows on the CPU; same mathematics as ``Compressor.pool``."""

import torch

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.rope import Rope


class FewRowsCompressor:
    """One compressor's pooling in fewer operations; copies the weight of its norm."""

    def __init__(self, compressor: Compressor) -> None:
        self._ratio, self._head_dim = compressor.ratio, compressor.head_dim
        self._norm = RowNorm(compressor.norm.weight, compressor.norm.eps)
        # A state row holds values and scores of one part of the channels for each block that a window spans.
        self._num_blocks = compressor.window // compressor.ratio

    def pool(self, rows: torch.Tensor, valid: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Compressed rows, float32 [X, d], normalised and rotated; see ``Compressor.pool``."""
        values_XWD, scores_XWD = self._own_parts(rows)
        if not valid.all():
            # Only masks: a whole window gives the same bits beside one that begins before the text.
            hidden_XW1 = ~valid.unsqueeze(-1)
            values_XWD = values_XWD.masked_fill(hidden_XW1, 0.0)
            scores_XWD = scores_XWD.masked_fill(hidden_XW1, torch.finfo(scores_XWD.dtype).min)
        pooled_XD = self._norm(scores_XWD.softmax(1).mul_(values_XWD).sum(1))
        turning = pooled_XD[:, -2 * rope.cos.shape[-1] :].view(torch.complex64)
        turning.mul_(torch.complex(rope.cos, rope.sin))
        return pooled_XD

    def _own_parts(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and scores [X, W, d]: of every slot that part of its channels which belongs to the slot's block."""
        num, blocks, ratio = len(rows), self._num_blocks, self._ratio
        if blocks == 1:
            return rows.split(self._head_dim, dim=-1)
        parts_XBRCBD = rows.view(num, blocks, ratio, 2, blocks, self._head_dim)
        own_XRCDB = parts_XBRCBD.diagonal(dim1=1, dim2=4)
        return own_XRCDB.permute(2, 0, 4, 1, 3).reshape(2, num, blocks * ratio, self._head_dim).unbind(0)
