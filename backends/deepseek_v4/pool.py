"""CachePool: the buffers of a stack of V4 layers; owns memory, knows nothing of requests or tables.

A page id addresses the same-numbered page of every buffer of its group: all layers of the target's pool, and
those of a draft pool that is built with the same page counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    AttentionKind,
    CacheLayout,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.rows.format import IndexRowFormat, RowFormat
from specdec.checks import positive_int
from specdec.errors import ConfigError

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBuffers:
    """Buffers of one layer; None for a cache that its kind does not have."""

    swa: torch.Tensor
    compressed: torch.Tensor | None = None
    state: torch.Tensor | None = None
    index_keys: torch.Tensor | None = None
    index_state: torch.Tensor | None = None

    def num_bytes(self) -> int:
        buffers = (self.swa, self.compressed, self.state, self.index_keys, self.index_state)
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)


class CachePool:
    """Buffers per layer, shaped by the row formats of ``layout``.

    Quantised buffers are uint8 [P, page bytes], plain ones [P, R, D] of their type, states fp32 [P, R, D].
    K/V and indexer buffers start as zeros. States start uninitialised, or as NaN with ``poison``, because a
    state row is read only after it was written.

    Raises ConfigError when a group of the layout has no positive page count in ``num_pages`` (other groups in
    it are ignored, so a draft pool takes the target's counts) or the layout has not ``num_layers`` layers.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_pages: Mapping[str, int],
        *,
        device: torch.device,
        num_layers: int | None = None,
        poison: bool = False,
    ) -> None:
        if num_layers is not None and num_layers != layout.num_layers:
            raise ConfigError(
                f"layer_num must equal the layers of the cache layout, got {num_layers} and {layout.num_layers}"
            )
        self.layout = layout
        self.device = device
        self.num_pages = _pages_of_groups(layout, num_pages)
        self.kinds = layout.kinds
        self.swa_rows: RowFormat = layout.swa_rows
        self._compressed_rows = {kind: layout.compressed_rows(kind) for kind in layout.compressing_kinds}
        self._state_rows = {kind: layout.state_rows(kind) for kind in layout.compressing_kinds}
        self._index_rows = layout.index_rows if AttentionKind.CSA in self.kinds else None
        self._index_state_rows = layout.index_state_rows if AttentionKind.CSA in self.kinds else None
        self._poison = poison
        self._layers = tuple(self._build_layer(kind) for kind in self.kinds)

    def kind(self, layer: int) -> AttentionKind:
        """Attention kind of a layer of this pool (layers count from 0 in every pool)."""
        return self.kinds[self._check(layer)]

    def compressed_rows(self, layer: int) -> RowFormat:
        """Row format of ``compressed(layer)``. ConfigError when it has none."""
        return self._present(layer, self._compressed_rows.get(self.kind(layer)), "compressed K/V")

    def state_rows(self, layer: int) -> RowFormat:
        """Row format of ``state(layer)``. ConfigError when it has none."""
        return self._present(layer, self._state_rows.get(self.kind(layer)), "compressor state")

    def index_rows(self, layer: int) -> IndexRowFormat:
        """Row format of ``index_keys(layer)``. ConfigError when it has none."""
        rows = self._index_rows if self.kind(layer) is AttentionKind.CSA else None
        return self._present(layer, rows, "indexer key")

    def index_state_rows(self, layer: int) -> RowFormat:
        """Row format of ``index_state(layer)``. ConfigError when it has none."""
        rows = self._index_state_rows if self.kind(layer) is AttentionKind.CSA else None
        return self._present(layer, rows, "indexer state")

    def swa(self, layer: int) -> torch.Tensor:
        """Sliding-window K/V of a layer; every layer has it."""
        return self._layer(layer).swa

    def compressed(self, layer: int) -> torch.Tensor:
        """Compressed K/V of a layer. ConfigError when it has none."""
        return self._present(layer, self._layer(layer).compressed, "compressed K/V")

    def state(self, layer: int) -> torch.Tensor:
        """Compressor state of a layer. ConfigError when it has none."""
        return self._present(layer, self._layer(layer).state, "compressor state")

    def index_keys(self, layer: int) -> torch.Tensor:
        """Indexer keys of a layer. ConfigError when it has none."""
        return self._present(layer, self._layer(layer).index_keys, "indexer key")

    def index_state(self, layer: int) -> torch.Tensor:
        """State of the indexer's compressor of a layer. ConfigError when it has none."""
        return self._present(layer, self._layer(layer).index_state, "indexer state")

    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffers.num_bytes() for buffers in self._layers)

    def _check(self, layer: int) -> int:
        if not 0 <= layer < len(self.kinds):
            raise ConfigError(f"layer {layer} is out of range, the pool has {len(self.kinds)} layers")
        return layer

    def _layer(self, layer: int) -> LayerBuffers:
        return self._layers[self._check(layer)]

    def _present(self, layer: int, found: Found | None, what: str) -> Found:
        if found is None:
            raise ConfigError(f"layer {layer} has no {what} cache: it is a {self.kind(layer).name} layer")
        return found

    def _build_layer(self, kind: AttentionKind) -> LayerBuffers:
        swa = self._zeros(self.swa_rows, SWA_GROUP)
        if not kind.compresses:
            return LayerBuffers(swa=swa)
        compressed = self._zeros(self._compressed_rows[kind], compressed_group(kind))
        state = self._state(self._state_rows[kind], state_group(kind))
        if kind is AttentionKind.HCA:
            return LayerBuffers(swa=swa, compressed=compressed, state=state)
        return LayerBuffers(
            swa=swa,
            compressed=compressed,
            state=state,
            index_keys=self._zeros(self.layout.index_rows, compressed_group(kind)),
            index_state=self._state(self.layout.index_state_rows, INDEX_STATE_GROUP),
        )

    def _zeros(self, rows: RowFormat, group_id: str) -> torch.Tensor:
        return rows.allocate(self.num_pages[group_id], self.device)

    def _state(self, rows: RowFormat, group_id: str) -> torch.Tensor:
        shape = (self.num_pages[group_id], rows.rows_per_page, rows.width)
        if self._poison:
            return torch.full(shape, float("nan"), dtype=torch.float32, device=self.device)
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def _pages_of_groups(layout: CacheLayout, num_pages: Mapping[str, int]) -> dict[str, int]:
    pages = {}
    for spec in layout.group_specs():
        if spec.group_id not in num_pages:
            raise ConfigError(f"no number of pages for cache group {spec.group_id}, known are {sorted(num_pages)}")
        pages[spec.group_id] = positive_int(f"{spec.group_id}: num_pages", num_pages[spec.group_id])
    return pages
