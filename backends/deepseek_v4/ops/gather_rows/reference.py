"""Cache rows as a contiguous matrix, in plain torch: the row format's own reader."""

import torch

from backends.deepseek_v4.rows.format import RowFormat


def gather_rows(buffer: torch.Tensor, rows: RowFormat, slots_X: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See the package."""
    return rows.read(buffer, slots_X).to(dtype)
