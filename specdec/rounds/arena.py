"""RoundArena: the tensors that a recorded round reads, of one size, at addresses that never change.

One staging buffer on the host holds all integers of a round and reaches the device in one copy.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from specdec.request import LiveRequest

PADDING_POSITION = -1
INT32_PER_INT64 = 2


class RoundArena:
    """Integers of a round of ``num_reqs`` requests of ``width`` rows each.

    rows_B         int64 row of the block tables; the sink row for padding
    firsts_B       int64 position of the first token that the request may get; 0 for padding
    num_drafted_B  int64 drafted tokens that count
    remaining_B    int64 tokens that the request may still get; 0 for padding
    tokens_BN      int64 newest token and draft, 0 where there is none
    positions_T    int32; -1 for padding requests and beyond the draft
    reqs_T         int32, constant
    """

    def __init__(self, num_reqs: int, width: int, *, sink_row: int, device: torch.device) -> None:
        self.num_reqs, self.width, self._sink_row = num_reqs, width, sink_row
        num_tokens = num_reqs * width
        sizes = [num_reqs] * 4 + [num_tokens, -(-num_tokens // INT32_PER_INT64)]
        host = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host, self._device = host, torch.zeros_like(host, device=device)
        starts = list(accumulate(sizes, initial=0))
        parts = [self._device[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        self.rows_B, self.firsts_B, self.num_drafted_B, self.remaining_B = parts[:4]
        self.tokens_BN = parts[4].view(num_reqs, width)
        self.positions_T = parts[5].view(torch.int32)[:num_tokens]
        self.reqs_T = torch.arange(num_reqs, dtype=torch.int32, device=device).repeat_interleave(width)
        # Everything but the positions, which are of another type.
        self._integers = host.numpy()[: starts[5]]
        self._positions_T = host.numpy()[starts[5] :].view(np.int32)[:num_tokens]
        self._no_tokens, self._no_positions = [0] * width, [PADDING_POSITION] * width

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that a recorded round reads."""
        return (
            self.rows_B,
            self.firsts_B,
            self.num_drafted_B,
            self.remaining_B,
            self.tokens_BN,
            self.positions_T,
            self.reqs_T,
        )

    def write(self, requests: Sequence[LiveRequest]) -> None:
        """Write the decode rows of ``requests``, padded, on the host; no copy of the round before may be running."""
        width = self.width
        # Lists of all columns, since two long assignments to an array take less than many short ones.
        rows: list[int] = []
        firsts: list[int] = []
        num_drafted: list[int] = []
        remaining: list[int] = []
        tokens: list[int] = []
        positions: list[int] = []
        for live in requests:
            draft, known = live.draft, live.tokens
            first, count = len(known), len(draft)
            rows.append(live.row)
            firsts.append(first)
            num_drafted.append(count)
            remaining.append(live.max_tokens - first)
            tokens.append(known[-1])
            tokens += draft
            positions += range(first - 1, first + count)
            if count + 1 < width:
                tokens += self._no_tokens[count + 1 :]
                positions += self._no_positions[count + 1 :]
        missing = self.num_reqs - len(requests)
        if missing:
            rows += [self._sink_row] * missing
            for column in (firsts, num_drafted, remaining):
                column += [0] * missing
            tokens += self._no_tokens * missing
            positions += self._no_positions * missing
        self._integers[:] = rows + firsts + num_drafted + remaining + tokens
        self._positions_T[:] = positions

    def upload(self) -> None:
        """Bring what was written to the device; the copy may still run when this returns."""
        self._device.copy_(self._host, non_blocking=True)
