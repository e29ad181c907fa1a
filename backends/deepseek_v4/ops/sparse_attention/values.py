"""KeyList: the rows of one cache that the tokens of a pass attend."""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.pass_values import SlotList
from backends.deepseek_v4.rows.format import RowFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyList:
    """Rows of one buffer per token; each row is key and value of all heads.

    buffer  pages of a layer's cache in the format ``rows``
    slots   which rows each token attends; a slot of -1 within the counted ones is skipped
    """

    buffer: torch.Tensor
    rows: RowFormat
    slots: SlotList
