"""DraftCache: keys and values of an EAGLE-3 head by engine row and slot; knows no model.

A slot is the position of the state that it was made from. It is overwritten when that position is computed again, so
rejected tokens need no step of their own: what lies behind a query is hidden until it is written anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GROWTH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheRows:
    """Engine rows of some requests.

    index_B  int64, to write by
    place    to read by: a slice where they lie side by side, as nothing is copied then
    """

    index_B: torch.Tensor
    place: torch.Tensor | slice

    @classmethod
    def of(cls, rows: Sequence[int], device: torch.device) -> "CacheRows":
        """From numbers that the host knows."""
        index_B = torch.tensor(rows, dtype=torch.int64).to(device)
        side_by_side = list(rows) == list(range(rows[0], rows[0] + len(rows))) if rows else False
        return cls(index_B=index_B, place=slice(rows[0], rows[0] + len(rows)) if side_by_side else index_B)

    def __len__(self) -> int:
        return len(self.index_B)


class DraftCache:
    """Keys and values [rows, slots, G, d]; grows with the longest row."""

    def __init__(self, *, max_rows: int, num_heads: int, head_dim: int, like: torch.Tensor) -> None:
        # Zeros, not whatever the memory holds: a hidden key still meets a weight of zero, and zero times NaN is NaN.
        self._shape = (max_rows, GROWTH, num_heads, head_dim)
        self.keys = torch.zeros(self._shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)

    def reserve(self, num_slots: int) -> None:
        """Make room for slots 0..``num_slots`` - 1 of every row."""
        capacity = self.keys.shape[1]
        if num_slots <= capacity:
            return
        wanted = max(-(-num_slots // GROWTH) * GROWTH, 2 * capacity)
        self.keys, self.values = (_grown(x, wanted) for x in (self.keys, self.values))

    def write(self, rows: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [..., G, d] of rows and slots int64 [...]."""
        self.keys[rows, slots] = keys
        self.values[rows, slots] = values

    def read(self, rows: CacheRows, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, ``num_slots``, G, d] of rows; they may be views, which the next write changes."""
        return self.keys[rows.place, :num_slots], self.values[rows.place, :num_slots]


def _grown(old: torch.Tensor, capacity: int) -> torch.Tensor:
    new = old.new_zeros(old.shape[0], capacity, *old.shape[2:])
    new[:, : old.shape[1]] = old
    return new
