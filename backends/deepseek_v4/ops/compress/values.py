"""EntryCache: what compressed rows of one cache are made of, and where they go."""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.format import RowFormat
from specdec.api import GroupTable


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryCache:
    """The compressed rows of a layer, or its index keys.

    table, rows_per_page, state  block table, page size and buffer (float32 [P, R, 2 * C]) of the state group
    norm_weight                  float32 [D], of the norm of compressed rows
    buffer, rows                 the compressed rows and their format; index keys are rotated by it
    """

    table: GroupTable
    rows_per_page: int
    state: torch.Tensor
    norm_weight: torch.Tensor
    buffer: torch.Tensor
    rows: RowFormat
