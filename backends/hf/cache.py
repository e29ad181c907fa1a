"""RowCache: keys and values of every engine row by slot, in the form in which transformers' models ask for a cache.

A slot is overwritten when its position is computed again, so going back to an earlier position needs no step of its
own: what lies behind it is hidden by the mask until it is written anew. Knows nothing of requests or of sampling.
"""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from backends.hf.placement import Placement

GROWTH = 256


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, slots, head width]; grows with the longest row."""

    is_sliding = False

    def __init__(self, max_rows: int) -> None:
        super().__init__()
        self._max_rows = max_rows
        self.placement: Placement | None = None

    @property
    def capacity(self) -> int:
        """Slots that each row has room for."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of one row; 0 before the first call."""
        stored = [] if self.keys is None or self.values is None else [self.keys, self.values]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in stored)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is allocated before the first call says how wide heads are; see ``update``."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the real tokens of the call; keys and values of its rows up to its key width.

        The further arguments are whatever a model passes along; a dense cache needs none of them.
        """
        placement = self.placement
        assert placement is not None, "a call is announced to the cache before the model runs"
        part = placement.part
        if self.capacity < part.kv_width:
            capacity = max(-(-part.kv_width // GROWTH) * GROWTH, 2 * self.capacity)
            self.keys = self._grown(self.keys, key_states, capacity)
            self.values = self._grown(self.values, value_states, capacity)
            self.is_initialized = True
        return self._exchange(self.keys, key_states, placement), self._exchange(self.values, value_states, placement)

    def move(self, row: int, slots: Sequence[int], new_slots: Sequence[int]) -> None:
        """Copy keys and values of ``slots`` of a row to ``new_slots``."""
        for stored in (self.keys, self.values):
            # An index list makes a copy before anything is written.
            stored[row, :, list(new_slots)] = stored[row, :, list(slots)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and offset of the keys that ``update`` returns."""
        assert self.placement is not None, "a call is announced to the cache before the model runs"
        return self.placement.part.kv_width, 0

    def get_seq_length(self) -> int:
        """Keys before the queries of the call."""
        return 0 if self.placement is None else self.placement.part.kv_width - self.placement.part.width

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def _grown(self, old: torch.Tensor | None, states: torch.Tensor, capacity: int) -> torch.Tensor:
        # Zeros, not whatever the memory holds: a hidden key still meets a weight of zero, and zero times NaN is NaN.
        new = states.new_zeros(self._max_rows, states.shape[1], capacity, states.shape[3])
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new

    @staticmethod
    def _exchange(stored: torch.Tensor, states: torch.Tensor, placement: Placement) -> torch.Tensor:
        part = placement.part
        first = part.spans[0]
        if len(part.spans) == 1:
            stored[first.row, :, first.start : first.end] = states[0, :, : first.length]
        else:
            stored[placement.rows_T, :, placement.slots_T] = states[placement.batch_T, :, placement.column_T]
        shown = stored[:, :, : part.kv_width]
        if part.is_dense:
            return shown[first.row : first.row + len(part.spans)]
        return shown[torch.tensor(part.rows, device=stored.device)]


class RowCache(Cache):
    """One ``RowLayer`` per layer of a model."""

    def __init__(self, *, num_layers: int, max_rows: int) -> None:
        super().__init__(layers=[RowLayer(max_rows) for _ in range(num_layers)])

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of one row over all layers; 0 before the first call."""
        return sum(layer.slot_bytes for layer in self.layers)

    def announce(self, placement: Placement) -> None:
        """Say what the next call of the model stores and reads."""
        for layer in self.layers:
            layer.placement = placement

    def move(self, row: int, slots: Sequence[int], new_slots: Sequence[int]) -> None:
        """Copy what lies in ``slots`` of a row to ``new_slots``, in every layer."""
        for layer in self.layers:
            layer.move(row, slots, new_slots)
