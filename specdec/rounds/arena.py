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
        array = host.numpy()
        self._columns_4B = array[: 4 * num_reqs].reshape(4, num_reqs)
        self._tokens_BN = array[starts[4] : starts[5]].reshape(num_reqs, width)
        self._positions_BN = array[starts[5] :].view(np.int32)[:num_tokens].reshape(num_reqs, width)
        self._offsets_N = np.arange(width, dtype=np.int32)

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

    def stage(self, requests: Sequence[LiveRequest]) -> None:
        """Write the decode rows of ``requests``, padded, to the device; the copy may still run when this returns."""
        count = len(requests)
        columns_4B, tokens_BN = self._columns_4B, self._tokens_BN
        columns_4B[0, count:] = self._sink_row
        columns_4B[1:, count:] = 0
        tokens_BN[:] = 0
        for b, live in enumerate(requests):
            draft = live.draft
            columns_4B[:, b] = live.row, len(live.tokens), len(draft), live.remaining
            tokens_BN[b, : 1 + len(draft)] = live.tokens[-1], *draft
        firsts_B1, drafted_B1 = columns_4B[1][:, None], columns_4B[2][:, None]
        seen_BN = (self._offsets_N <= drafted_B1) & (firsts_B1 > 0)
        self._positions_BN[:] = np.where(seen_BN, firsts_B1 - 1 + self._offsets_N, PADDING_POSITION)
        self._device.copy_(self._host, non_blocking=True)
