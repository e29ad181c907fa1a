"""SplitPages: uint8 pages that hold all value records first and all scale records after them.

Knows nothing of what the bytes mean. A page of ``n`` rows is laid out as

    [ n * value_bytes | n * scale_bytes | padding up to page_bytes ]

so that one row is in two places. Both places are addressed by (page, row) and never as one contiguous row.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.missing import writable_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPages:
    """Byte addresses of split rows; buffers are contiguous uint8 [P, page_bytes]."""

    rows_per_page: int
    value_bytes: int
    scale_bytes: int
    page_bytes: int

    def _records(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Strided views [P, n, value_bytes] and [P, n, scale_bytes] of the buffer."""
        num_rows = self.rows_per_page
        split = num_rows * self.value_bytes
        values = buffer[:, :split].unflatten(1, (num_rows, self.value_bytes))
        end = split + num_rows * self.scale_bytes
        return values, buffer[:, split:end].unflatten(1, (num_rows, self.scale_bytes))

    def _address(self, slots_X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(page, row) of slots that are 0 or more, int64."""
        slots = slots_X.to(torch.int64)
        return slots // self.rows_per_page, slots % self.rows_per_page

    def allocate(self, num_pages: int, device: torch.device) -> torch.Tensor:
        """Zeros, uint8 [num_pages, page_bytes]."""
        return torch.zeros(num_pages, self.page_bytes, dtype=torch.uint8, device=device)

    def store(
        self, buffer: torch.Tensor, slots_T: torch.Tensor, values_TV: torch.Tensor, scales_TS: torch.Tensor
    ) -> None:
        """Copy value and scale bytes (uint8) into their places; negative slots land in the last row of page 0."""
        address = self._address(writable_slots(slots_T, self.rows_per_page))
        values, scales = self._records(buffer)
        values.index_put_(address, values_TV)
        scales.index_put_(address, scales_TS)

    def load(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Value bytes [X, value_bytes] and scale bytes [X, scale_bytes] of slots that are 0 or more."""
        address = self._address(slots_X)
        values, scales = self._records(buffer)
        return values[address], scales[address]
