"""Rows 12 to 20 of the behaviour list: byte sizes, layouts, groups and pools of the V4 caches."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    SWA_ROWS_PER_PAGE,
    AttentionKind,
    CacheLayout,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.profile import draft_cell_bytes, estimated_pages
from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from specdec.cache.sizing import PoolLimits
from specdec.errors import ConfigError

CPU = torch.device("cpu")
CSA, HCA = AttentionKind.CSA, AttentionKind.HCA


def v4_layout(*ratios: int, page_size: int = 64, indexer_dtype: str = "mxfp4") -> CacheLayout:
    return CacheLayout(compress_ratios=ratios, sliding_window=128, page_size=page_size, indexer_dtype=indexer_dtype)


def seed_pool(page_size: int, tokens: int) -> CachePool:
    """The pool of a batch of 2 whose context equals its token budget."""
    layout = v4_layout(1, 4, 128, page_size=page_size)
    limits = PoolLimits(max_live=2, scheduled_tokens=1, total_tokens=tokens, max_context=tokens)
    return CachePool(layout, estimated_pages(layout, limits, decode_tokens=1), device=CPU, num_layers=3)


def test_row_12_cache_helpers():
    rows = Fp8KvCodec(head_dim=512, rope_dim=64)
    assert (rows.nope_dim, rows.value_bytes, rows.value_bytes + rows.scale_bytes) == (448, 576, 584)
    assert v4_layout(4, indexer_dtype="fp8").index_rows.row_bytes == 132
    assert v4_layout(4, indexer_dtype="mxfp4").index_rows.row_bytes == 68


def test_row_13_attention_layout():
    layout = v4_layout(0, 4, 128)
    assert [kind.ratio for kind in layout.kinds] == [1, 4, 128]
    rows = Fp8KvCodec(head_dim=512, rope_dim=64)
    assert (rows.value_bytes, rows.scale_bytes, layout.swa_rows.row_bytes) == (576, 8, 584)
    assert layout.swa_cell_bytes() == 585
    assert layout.compressed_cell_bytes(CSA) == 585
    assert layout.compressed_cell_bytes(HCA) == 27
    assert [layout.state_width(kind) for kind in layout.kinds] == [512, 1024, 512]
    assert layout.index_state_width == 256
    assert layout.index_rows.row_bytes == 68
    assert v4_layout(0, 4, 128, indexer_dtype="fp8").index_rows.row_bytes == 132


def test_row_14_profile_uses_draft_cell_size():
    assert draft_cell_bytes(None, explicit=777, generic=11, num_layers=3) == 777
    assert draft_cell_bytes(None, generic=11, num_layers=3) == 33
    assert draft_cell_bytes(None) == 0
    assert draft_cell_bytes(v4_layout(0, 4, 128, 0).slice_layers(3, 4)) == 585


def test_row_15_layout_can_slice_mtp_layers():
    layout = v4_layout(0, 4, 128, 0)
    draft = layout.slice_layers(3, 4)
    assert [kind.ratio for kind in draft.kinds] == [1]
    assert draft.cache_cell_bytes(1) == layout.swa_cell_bytes()
    assert [spec.group_id for spec in draft.group_specs()] == [SWA_GROUP]
    with pytest.raises(ConfigError, match="out of range"):
        layout.slice_layers(4, 5)


def test_row_16_layout_rejects_unknown_ratio():
    with pytest.raises(ConfigError, match="compress_ratio=8"):
        v4_layout(0, 8)


def test_row_17_pool_allocates_v4_cache_families():
    pool = seed_pool(page_size=64, tokens=128)
    assert pool.swa(0).shape == pool.swa(1).shape == pool.swa(2).shape == (8, 37440)
    with pytest.raises(ConfigError, match="layer 0 has no compressed K/V cache"):
        pool.compressed(0)
    assert pool.compressed(1).shape == (4, 37440)
    assert pool.state(1).shape == (8, 4, 2048)
    assert pool.state(2).shape == (36, 8, 1024)
    assert pool.compressed(2).shape == (4, 1728)
    assert pool.index_keys(1).shape == (4, 4352)
    assert pool.index_state(1).shape == (8, 4, 512)
    for state in (pool.state(1), pool.state(2), pool.index_state(1)):
        assert state.dtype == torch.float32
    for rows in (pool.swa(0), pool.compressed(1), pool.compressed(2), pool.index_keys(1)):
        assert rows.dtype == torch.uint8
    assert pool.layout.cache_cell_bytes(3) == 16771
    assert pool.num_pages == {
        SWA_GROUP: 8,
        state_group(CSA): 8,
        compressed_group(CSA): 4,
        state_group(HCA): 36,
        compressed_group(HCA): 4,
        INDEX_STATE_GROUP: 8,
    }


def test_row_18_pool_uses_compressed_storage_blocks_for_page_256():
    pool = seed_pool(page_size=256, tokens=512)
    assert pool.swa_rows.rows_per_page == SWA_ROWS_PER_PAGE == 64
    assert pool.compressed_rows(1).rows_per_page == 64
    assert pool.compressed_rows(2).rows_per_page == 2
    assert pool.compressed(1).shape == (5, 37440)
    assert pool.index_keys(1).shape == (5, 4352)


def test_row_19_pool_rejects_nonpositive_size():
    layout = v4_layout(1, 4, 128)
    limits = PoolLimits(max_live=2, scheduled_tokens=1, total_tokens=0, max_context=128)
    with pytest.raises(ConfigError, match="total_tokens must be an integer of at least 1, got 0"):
        estimated_pages(layout, limits, decode_tokens=1)
    with pytest.raises(ConfigError, match="num_pages must be an integer of at least 1, got 0"):
        CachePool(v4_layout(0), {SWA_GROUP: 0}, device=CPU)


def test_row_20_pool_requires_matching_layout_layers():
    with pytest.raises(ConfigError, match="layer_num must equal .* got 2 and 1"):
        CachePool(v4_layout(0), {SWA_GROUP: 2}, device=CPU, num_layers=2)
