"""What the operators of a packed pass exchange: index lists and angles, as frozen values of device tensors.

A packed pass is T tokens, each with a position and a row of the block tables. A token of position -1 is padding: it
sees nothing, all its slots are -1, and what it computes is finite and read by nobody. Letters beside those of
``specdec.api``: K columns of a slot list, R rotated pairs (half of the rotated dims).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from specdec.cache.spec import CacheGroupSpec, ceil_div

# FlashMLA reads index lists 64 at a time.
SLOT_COLUMNS = 64


def slot_columns(num_rows: int) -> int:
    """Columns K of a list of up to ``num_rows`` slots."""
    return SLOT_COLUMNS * max(1, ceil_div(num_rows, SLOT_COLUMNS))


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotList:
    """Rows that each token attends in one cache.

    slots_TK  int32, valid ones packed to the left, then -1; K is a multiple of 64
    lens_T    int32 number of valid ones
    """

    slots_TK: torch.Tensor
    lens_T: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexShape:
    """Constants of the index lists of a model.

    groups         cache groups of the pass by id
    kinds          attention kinds with compressed rows that occur
    window_tokens  W, counting the current token
    max_context    positions of the longest request; bounds the list of HCA rows
    index_topk     rows that a CSA query attends; 0 without CSA
    """

    groups: Mapping[str, CacheGroupSpec]
    kinds: tuple[AttentionKind, ...]
    window_tokens: int
    max_context: int
    index_topk: int

    @property
    def window_columns(self) -> int:
        """K of the list of window rows."""
        return slot_columns(self.window_tokens)

    @property
    def hca_columns(self) -> int:
        """K of the list of HCA rows."""
        return slot_columns(self.max_context // AttentionKind.HCA.ratio)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassIndices:
    """All index tensors of a packed pass; int32 throughout.

    positions_T  -1 for padding
    reqs_T       row of the block tables of each token
    write_slots  group id -> [T] slot of each token's own row, for groups of one row per token (window, states)
    entry_slots  kind -> [T] slot of the compressed row that the token closes; -1 where it closes none
    visible      kind -> [T] compressed rows that the token may see, ``(p + 1) // ratio``; 0 for padding
    window       rows of the sliding window, in order of position
    hca          all visible HCA rows in order; None without HCA layers
    """

    positions_T: torch.Tensor
    reqs_T: torch.Tensor
    write_slots: Mapping[str, torch.Tensor]
    entry_slots: Mapping[AttentionKind, torch.Tensor]
    visible: Mapping[AttentionKind, torch.Tensor]
    window: SlotList
    hca: SlotList | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PassAngles:
    """Rotations of a packed pass, float32 [T, 2, R]: cosines, then sines. Padding has the angles of position 0.

    window    of every token in window-only layers
    compress  of every token in compressing layers; None without any
    entries   kind -> of the start of each token's block, ``p - p % ratio``
    """

    window: torch.Tensor
    compress: torch.Tensor | None
    entries: Mapping[AttentionKind, torch.Tensor]

    def of(self, kind: AttentionKind) -> torch.Tensor:
        """Angles of the tokens in layers of a kind."""
        if kind.compresses:
            assert self.compress is not None, "a compressing layer has a compressing rope"
            return self.compress
        return self.window
