"""Compressor: a window of tokens -> one compressed row; knows no cache.

A *state row* is a pure function of one token's position and normalised layer input. A compressed row is a pure
function of the state rows of its window: the last 128 tokens for ratio 128; for ratio 4 the last 8, of which
the earlier four give the first half of their channels and the later four the second half.
"""

import torch
import torch.nn.functional as F
from torch import nn

from backends.deepseek_v4.config import CSA_RATIO, DeepseekV4Config
from backends.deepseek_v4.norms import RMSNorm
from backends.deepseek_v4.rope import Rope, apply_rope


class Compressor(nn.Module):
    """Compressor of one layer; also the indexer's, at its own width.

    ratio        tokens between two compressed rows
    window       tokens that one compressed row depends on (8 or 128)
    channels     width of one token's values: 2 * head_dim where windows overlap, else head_dim
    state_width  floats of a state row: values, then scores
    """

    def __init__(self, config: DeepseekV4Config, ratio: int, head_dim: int) -> None:
        super().__init__()
        self.ratio, self.head_dim = ratio, head_dim
        self.overlaps = ratio == CSA_RATIO
        self.window = 2 * ratio if self.overlaps else ratio
        self.channels = 2 * head_dim if self.overlaps else head_dim
        self.state_width = 2 * self.channels
        self.ape = nn.Parameter(torch.zeros(ratio, self.channels))
        self.wkv = nn.Linear(config.hidden_size, self.channels, bias=False)
        self.wgate = nn.Linear(config.hidden_size, self.channels, bias=False)
        self.norm = RMSNorm(head_dim, config.rms_norm_eps)

    def state_rows(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """State rows, float32 [..., state_width], of normalised layer inputs ``x`` [..., D] at ``positions`` [...]."""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            values = F.linear(wide, self.wkv.weight.float())
            scores = F.linear(wide, self.wgate.weight.float()) + self.ape.float()[positions % self.ratio]
            return torch.cat((values, scores), dim=-1)

    def pool(self, rows: torch.Tensor, valid: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Compressed rows, float32 [..., head_dim], normalised and rotated.

        rows   [..., window, state_width] state rows in order of position; content where not valid is ignored
        valid  bool [..., window]; False for positions before the text (at least the last is True where it matters)
        rope   angles of each row's block start ``(p // ratio) * ratio``, [..., r / 2]
        """
        values, scores = rows.split(self.channels, dim=-1)
        if self.overlaps:
            values, scores = self._own_halves(values), self._own_halves(scores)
        return self.pool_slots(values, scores, valid, rope)

    def pool_slots(self, values: torch.Tensor, scores: torch.Tensor, valid: torch.Tensor, rope: Rope) -> torch.Tensor:
        """``pool`` of values and scores [..., window, head_dim] whose channel halves are already chosen."""
        seen = valid.unsqueeze(-1)
        # A finite floor instead of -inf keeps a window without any valid slot at 0 instead of NaN.
        weights = torch.softmax(scores.masked_fill(~seen, torch.finfo(scores.dtype).min), dim=-2)
        pooled = (weights * values.masked_fill(~seen, 0.0)).sum(-2)
        return apply_rope(self.norm(pooled), rope)

    def pool_sequence(self, rows: torch.Tensor, rope: Rope) -> torch.Tensor:
        """All complete compressed rows [..., n, head_dim] of a text from its start, n = L // ratio.

        rows  [..., L, state_width] state rows of positions 0..L-1
        rope  angles of the block starts 0, ratio, 2 * ratio, ..., [n, r / 2]
        """
        num = rows.shape[-2] // self.ratio
        blocks = rows[..., : num * self.ratio, :].unflatten(-2, (num, self.ratio))
        if not self.overlaps:
            values, scores = blocks.split(self.channels, dim=-1)
            return self.pool_slots(values, scores, values.new_ones((), dtype=torch.bool).expand(self.window), rope)
        before = torch.cat((torch.zeros_like(blocks[..., :1, :, :]), blocks[..., :-1, :, :]), dim=-3)
        windows = torch.cat((before, blocks), dim=-2)
        first_slot = torch.arange(num, device=rows.device).unsqueeze(-1) * self.ratio - self.ratio
        valid = first_slot + torch.arange(self.window, device=rows.device) >= 0
        return self.pool(windows, valid, rope)

    def _own_halves(self, x: torch.Tensor) -> torch.Tensor:
        """First channel half of the earlier ``ratio`` slots, second half of the later ones: [..., window, head_dim]."""
        earlier, later = x.split(self.ratio, dim=-2)
        return torch.cat((earlier[..., : self.head_dim], later[..., self.head_dim :]), dim=-2)
