"""CacheLayout: the cache groups of a stack of V4 layers and the bytes of their pages; allocates nothing.

A V4 layer keeps a sliding window of K/V rows. A compressing layer also keeps one compressed row per ``ratio``
tokens and the compressor's state of the last tokens; a CSA layer further keeps an indexer key beside every
compressed row (under the same pages) and the state of the indexer's compressor.
"""

from dataclasses import dataclass
from enum import Enum

import torch

from backends.deepseek_v4.config import ALLOWED_RATIOS, CSA_RATIO, HCA_RATIO, WINDOW_ONLY_RATIO
from backends.deepseek_v4.rows.choose import PLAIN_DTYPES, index_rows, kv_rows, state_rows
from backends.deepseek_v4.rows.format import IndexRowFormat, RowFormat
from specdec.cache.spec import CacheGroupSpec, Family, Retention, ceil_div
from specdec.checks import integer, positive_int
from specdec.errors import ConfigError

SWA_GROUP = "v4.swa_kv"
INDEX_STATE_GROUP = "v4.c4a.indexer_compressor_state"

SWA_ROWS_PER_PAGE = 64
# A compressed page covers this many raw tokens, whatever unit the budget is counted in.
COMPRESSED_PAGE_TOKENS = 256


class AttentionKind(Enum):
    """What a layer attends besides itself; the value is the raw tokens per cached row.

    A checkpoint's ratio of a window-only layer is 0 (``config.WINDOW_ONLY_RATIO``) or 1; both are SWA.

    SWA  the sliding window only
    CSA  the window and the compressed rows that the indexer selects
    HCA  the window and all compressed rows
    """

    SWA = 1
    CSA = CSA_RATIO
    HCA = HCA_RATIO

    @classmethod
    def of(cls, compress_ratio: int) -> "AttentionKind":
        """The kind that a checkpoint's ratio means; 0 and 1 both mean no compression."""
        if compress_ratio == WINDOW_ONLY_RATIO:
            return cls.SWA
        for kind in cls:
            if kind.value == compress_ratio:
                return kind
        raise ConfigError(f"Unsupported DeepSeek-V4 compress_ratio={compress_ratio}: allowed are {ALLOWED_RATIOS}")

    @property
    def ratio(self) -> int:
        """Raw tokens per compressed row; 1 for none."""
        return self.value

    @property
    def compresses(self) -> bool:
        return self is not AttentionKind.SWA

    @property
    def state_rows_per_page(self) -> int:
        """Rows of a page of compressor state. ConfigError for SWA, like the two properties below."""
        return _STATE_ROWS_PER_PAGE[_compressing(self)]

    @property
    def state_window(self) -> int:
        """Raw tokens that one compressed row is made of: two blocks for CSA, which overlap, one for HCA."""
        return 2 * self.ratio if _compressing(self) is AttentionKind.CSA else self.ratio

    @property
    def compressed_rows_per_page(self) -> int:
        return max(1, COMPRESSED_PAGE_TOKENS // _compressing(self).ratio)


_STATE_ROWS_PER_PAGE = {AttentionKind.CSA: 4, AttentionKind.HCA: 8}


def _compressing(kind: AttentionKind) -> AttentionKind:
    if not kind.compresses:
        raise ConfigError(f"compress_ratio={kind.ratio} has no compressed cache group")
    return kind


def state_group(kind: AttentionKind) -> str:
    """Id of the compressor-state group, for example ``v4.c4a.compressor_state``. ConfigError for SWA."""
    return f"v4.c{_compressing(kind).ratio}a.compressor_state"


def compressed_group(kind: AttentionKind) -> str:
    """Id of the compressed K/V group, for example ``v4.c4a.compressed_kv``. ConfigError for SWA."""
    return f"v4.c{_compressing(kind).ratio}a.compressed_kv"


def parse_state_group(group_id: str) -> AttentionKind | None:
    """The kind whose compressor-state group this is; None for every other id, the indexer's state included."""
    for kind in AttentionKind:
        if kind.compresses and group_id == state_group(kind):
            return kind
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLayout:
    """Cache groups, row formats and page sizes of a stack of layers.

    compress_ratios  per layer: 0 or 1 window only, 4 CSA, 128 HCA
    sliding_window   raw tokens a query attends, itself included
    head_dim         values of a K/V row
    rope_dim         rotated values at its end
    index_head_dim   values of an indexer key
    cache_dtype      storage of K/V rows: fp8, bf16 or fp32
    indexer_dtype    storage of indexer keys: plain, fp8 or mxfp4
    page_size        raw tokens of the unit in which a budget is counted; no group's own page size

    Raises ConfigError for an unknown ratio or sizes that cannot be stored.
    """

    compress_ratios: tuple[int, ...]
    sliding_window: int
    head_dim: int = 512
    rope_dim: int = 64
    index_head_dim: int = 128
    cache_dtype: str = "fp8"
    indexer_dtype: str = "mxfp4"
    page_size: int = 256

    def __post_init__(self) -> None:
        positive_int("sliding_window", self.sliding_window)
        positive_int("head_dim", self.head_dim)
        positive_int("rope_dim", self.rope_dim)
        positive_int("index_head_dim", self.index_head_dim)
        positive_int("page_size", self.page_size)
        if self.rope_dim >= self.head_dim:
            raise ConfigError(f"head_dim must exceed rope_dim={self.rope_dim}, got {self.head_dim}")
        for ratio in self.compress_ratios:
            AttentionKind.of(ratio)
        # Formats refuse the sizes that they cannot store.
        self.page_bytes()

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """Attention kind per layer."""
        return tuple(AttentionKind.of(ratio) for ratio in self.compress_ratios)

    @property
    def num_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def compressing_kinds(self) -> tuple[AttentionKind, ...]:
        """Kinds with a compressor among the layers, ascending by ratio, each once."""
        present = set(self.kinds)
        return tuple(kind for kind in AttentionKind if kind.compresses and kind in present)

    def slice_layers(self, start: int, stop: int) -> "CacheLayout":
        """The layout of layers ``start..stop-1``; a NextN module follows the target's last layer.

        Raises ConfigError when the range is empty or leaves the ratio list.
        """
        if not 0 <= start < stop <= self.num_layers:
            raise ConfigError(f"layers {start}..{stop} are out of range: compress_ratios has {self.num_layers} entries")
        return CacheLayout(
            compress_ratios=self.compress_ratios[start:stop],
            sliding_window=self.sliding_window,
            head_dim=self.head_dim,
            rope_dim=self.rope_dim,
            index_head_dim=self.index_head_dim,
            cache_dtype=self.cache_dtype,
            indexer_dtype=self.indexer_dtype,
            page_size=self.page_size,
        )

    def kv_rows(self, rows_per_page: int) -> RowFormat:
        """Format of K/V rows on pages of ``rows_per_page``."""
        return kv_rows(self.cache_dtype, head_dim=self.head_dim, rope_dim=self.rope_dim, rows_per_page=rows_per_page)

    @property
    def swa_rows(self) -> RowFormat:
        """Format of the sliding-window K/V rows."""
        return self.kv_rows(SWA_ROWS_PER_PAGE)

    def compressed_rows(self, kind: AttentionKind) -> RowFormat:
        """Format of the compressed K/V rows of a compressing kind."""
        return self.kv_rows(kind.compressed_rows_per_page)

    @property
    def index_rows(self) -> IndexRowFormat:
        """Format of the indexer keys, which lie beside the compressed rows of CSA layers."""
        plain = PLAIN_DTYPES.get(self.cache_dtype, torch.bfloat16)
        rows_per_page = AttentionKind.CSA.compressed_rows_per_page
        return index_rows(self.indexer_dtype, dim=self.index_head_dim, rows_per_page=rows_per_page, plain_dtype=plain)

    def state_rows(self, kind: AttentionKind) -> RowFormat:
        """Format of the compressor state rows ``[kv | score]`` of a compressing kind."""
        return state_rows(width=2 * self.state_width(kind), rows_per_page=kind.state_rows_per_page)

    @property
    def index_state_rows(self) -> RowFormat:
        """Format of the state rows of the indexer's compressor."""
        return state_rows(width=2 * self.index_state_width, rows_per_page=AttentionKind.CSA.state_rows_per_page)

    def state_width(self, kind: AttentionKind) -> int:
        """Values of each half of a compressor state row; two overlapping blocks for CSA."""
        return 2 * self.head_dim if kind is AttentionKind.CSA else self.head_dim

    @property
    def index_state_width(self) -> int:
        """Values of each half of a state row of the indexer's compressor."""
        return 2 * self.index_head_dim

    def group_specs(self) -> tuple[CacheGroupSpec, ...]:
        """Groups of these layers: window, then state and compressed rows by ratio, last the indexer state."""
        specs = [_sliding(SWA_GROUP, rows_per_page=SWA_ROWS_PER_PAGE, window=self.sliding_window)]
        for kind in self.compressing_kinds:
            rows_per_page = kind.state_rows_per_page
            specs.append(_sliding(state_group(kind), rows_per_page=rows_per_page, window=kind.state_window))
            specs.append(_compressed(kind))
        if AttentionKind.CSA in self.compressing_kinds:
            csa = AttentionKind.CSA
            rows_per_page = csa.state_rows_per_page
            specs.append(_sliding(INDEX_STATE_GROUP, rows_per_page=rows_per_page, window=csa.state_window))
        return tuple(specs)

    def layer_page_bytes(self, kind: AttentionKind) -> dict[str, int]:
        """Bytes per page and group that one layer of a kind adds."""
        sizes = {SWA_GROUP: self.swa_rows.page_bytes}
        if kind.compresses:
            sizes[state_group(kind)] = self.state_rows(kind).page_bytes
            sizes[compressed_group(kind)] = self.compressed_rows(kind).page_bytes
        if kind is AttentionKind.CSA:
            sizes[compressed_group(kind)] += self.index_rows.page_bytes
            sizes[INDEX_STATE_GROUP] = self.index_state_rows.page_bytes
        return sizes

    def page_bytes(self) -> dict[str, int]:
        """Bytes per page of every group, over all layers."""
        totals = {spec.group_id: 0 for spec in self.group_specs()}
        sizes = {kind: self.layer_page_bytes(kind) for kind in set(self.kinds)}
        for kind in self.kinds:
            for group_id, size in sizes[kind].items():
                totals[group_id] += size
        return totals

    # Cells: bytes per token if every cache were kept for every token. They overestimate (window and states are
    # resident for the last tokens only) and serve for the draft's share of a budget.

    def swa_cell_bytes(self) -> int:
        """Bytes of window K/V per raw token of a ``page_size`` page."""
        return ceil_div(self.kv_rows(self.page_size).page_bytes, self.page_size)

    def compressed_cell_bytes(self, kind: AttentionKind) -> int:
        """Bytes of compressed K/V per raw token."""
        return ceil_div(self.compressed_rows(kind).page_bytes, self.page_size)

    def layer_cell_bytes(self, kind: AttentionKind) -> int:
        """Bytes per raw token of one layer."""
        cell = self.swa_cell_bytes()
        if kind.compresses:
            cell += self.compressed_cell_bytes(kind) + self.state_rows(kind).row_bytes
        if kind is AttentionKind.CSA:
            cell += ceil_div(self.index_rows.page_bytes, self.page_size) + self.index_state_rows.row_bytes
        return cell

    def cache_cell_bytes(self, num_layers: int) -> int:
        """Bytes per raw token of the first ``num_layers`` layers. ConfigError if there are fewer."""
        integer("num_layers", num_layers, low=0, high=self.num_layers)
        return sum(self.layer_cell_bytes(kind) for kind in self.kinds[:num_layers])


def _sliding(group_id: str, *, rows_per_page: int, window: int) -> CacheGroupSpec:
    return CacheGroupSpec(
        group_id=group_id,
        retention=Retention.SLIDING_WINDOW,
        rows_per_page=rows_per_page,
        sliding_window_tokens=window,
        family=Family.STATE,
    )


def _compressed(kind: AttentionKind) -> CacheGroupSpec:
    return CacheGroupSpec(
        group_id=compressed_group(kind),
        retention=Retention.FULL_HISTORY,
        rows_per_page=kind.compressed_rows_per_page,
        entry_stride_tokens=kind.ratio,
        family=Family.HISTORY,
    )
