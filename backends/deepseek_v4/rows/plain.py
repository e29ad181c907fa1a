"""PlainRows: unquantised rows of one floating-point type; knows nothing of what the rows mean.

Used for fp32 and bf16 K/V caches, for the fp32 compressor states and for unquantised indexer keys. Buffers
are contiguous [P, R, D].
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.missing import writable_slots, zero_missing


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRows:
    """Rows stored as they are, rounded to ``dtype`` on write."""

    width: int
    rows_per_page: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        return self.row_bytes * self.rows_per_page

    def allocate(self, num_pages: int, device: torch.device) -> torch.Tensor:
        """Zeros [num_pages, rows_per_page, width]."""
        return torch.zeros(num_pages, self.rows_per_page, self.width, dtype=self.dtype, device=device)

    def write(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Store rows in place; negative slots land in the last row of page 0."""
        self.put(buffer, writable_slots(slots_T, self.rows_per_page), rows_TD)

    def put(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Store rows in place; slots must be 0 or more."""
        buffer.view(-1, self.width).index_copy_(0, slots_T, rows_TD.to(self.dtype))

    def read(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Rows [X, D] of ``dtype``; zeros for negative slots."""
        return zero_missing(self.take(buffer, slots_X.clamp(min=0)), slots_X)

    def take(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Rows [X, D] of ``dtype``; slots must be 0 or more."""
        return torch.embedding(buffer.view(-1, self.width), slots_X)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainIndexRows(PlainRows):
    """Unquantised indexer keys; no rotation, so queries need no preparation."""

    def prepare_query(self, queries_XD: torch.Tensor) -> torch.Tensor:
        """The queries, unchanged."""
        return queries_XD
