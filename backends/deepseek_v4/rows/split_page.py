"""SplitRows: quantised rows in uint8 pages, all value records first and all scale records after them.

Knows nothing of what the bytes mean; that is the codec's part. A page of ``n`` rows is laid out as

    [ n * value_bytes | n * scale_bytes | padding up to page_bytes ]

so that one row is in two places. Both places are addressed by (page, row) and never as one contiguous row.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.format import RowCodec
from backends.deepseek_v4.rows.missing import writable_slots, zero_missing
from specdec.cache.spec import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRows:
    """Rows in the bytes of ``codec``; buffers are contiguous uint8 [P, page_bytes]."""

    codec: RowCodec
    rows_per_page: int

    @property
    def width(self) -> int:
        return self.codec.width

    @property
    def row_bytes(self) -> int:
        return self.codec.value_bytes + self.codec.scale_bytes

    @property
    def page_bytes(self) -> int:
        return ceil_div(self.rows_per_page * self.row_bytes, self.codec.page_multiple) * self.codec.page_multiple

    def allocate(self, num_pages: int, device: torch.device) -> torch.Tensor:
        """Zeros, uint8 [num_pages, page_bytes]."""
        return torch.zeros(num_pages, self.page_bytes, dtype=torch.uint8, device=device)

    def write(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Encode and store rows in place; negative slots land in the last row of page 0."""
        self.put(buffer, writable_slots(slots_T, self.rows_per_page), rows_TD)

    def put(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Encode and store rows in place; slots must be 0 or more."""
        address = self._address(slots_T)
        for records, encoded in zip(self._records(buffer), self.codec.encode(rows_TD), strict=True):
            records.index_put_(address, encoded)

    def read(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Decoded rows [X, D]; zeros for negative slots."""
        return zero_missing(self.take(buffer, slots_X.clamp(min=0)), slots_X)

    def take(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Decoded rows [X, D]; slots must be 0 or more."""
        address = self._address(slots_X)
        values, scales = self._records(buffer)
        return self.codec.decode(values[address], scales[address])

    def _records(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Strided views [P, n, value_bytes] and [P, n, scale_bytes] of the buffer."""
        num_rows, codec = self.rows_per_page, self.codec
        split = num_rows * codec.value_bytes
        values = buffer[:, :split].unflatten(1, (num_rows, codec.value_bytes))
        end = split + num_rows * codec.scale_bytes
        return values, buffer[:, split:end].unflatten(1, (num_rows, codec.scale_bytes))

    def _address(self, slots_X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(page, row) of slots that are 0 or more, int64."""
        slots = slots_X.to(torch.int64)
        return slots // self.rows_per_page, slots % self.rows_per_page


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitIndexRows(SplitRows):
    """Quantised indexer keys, which come back rotated."""

    def prepare_query(self, queries_XD: torch.Tensor) -> torch.Tensor:
        """Queries rotated, quantised and dequantised like the keys, fp32 [X, D]."""
        return self.codec.decode(*self.codec.encode(queries_XD))
