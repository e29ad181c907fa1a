"""CachePool: shapes, sharing of page ids, initial values, and accessors that fail loudly."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    AttentionKind,
    CacheLayout,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.pool import CachePool
from specdec.errors import ConfigError

CPU = torch.device("cpu")
PAGES = {
    SWA_GROUP: 2,
    state_group(AttentionKind.CSA): 3,
    compressed_group(AttentionKind.CSA): 4,
    state_group(AttentionKind.HCA): 5,
    compressed_group(AttentionKind.HCA): 6,
    INDEX_STATE_GROUP: 7,
}
SMALL = CacheLayout(
    compress_ratios=(0, 4, 128),
    sliding_window=16,
    head_dim=24,
    rope_dim=8,
    index_head_dim=16,
    cache_dtype="fp32",
    indexer_dtype="plain",
)


def test_buffers_take_the_page_count_of_their_group():
    pool = CachePool(SMALL, PAGES, device=CPU)
    assert [tuple(pool.swa(layer).shape) for layer in range(3)] == [(2, 64, 24)] * 3
    assert pool.state(1).shape == (3, 4, 96)
    assert pool.compressed(1).shape == (4, 64, 24)
    assert pool.index_keys(1).shape == (4, 64, 16)
    assert pool.index_state(1).shape == (7, 4, 64)
    assert pool.state(2).shape == (5, 8, 48)
    assert pool.compressed(2).shape == (6, 2, 24)


def test_every_layer_has_its_own_buffers():
    layers = CacheLayout(compress_ratios=(0, 0), sliding_window=16, cache_dtype="bf16")
    pool = CachePool(layers, PAGES, device=CPU)
    pool.swa(0).fill_(1)
    assert pool.swa(1).eq(0).all()
    assert pool.swa(0).dtype == torch.bfloat16


@pytest.mark.usefixtures("nan_empty")
def test_rows_start_as_zeros_and_states_uninitialised():
    pool = CachePool(SMALL, PAGES, device=CPU)
    for rows in (pool.swa(0), pool.compressed(1), pool.compressed(2), pool.index_keys(1)):
        assert rows.eq(0).all()
    for state in (pool.state(1), pool.state(2), pool.index_state(1)):
        assert state.isnan().all()
        assert state.dtype == torch.float32


def test_poison_fills_states_with_nan():
    pool = CachePool(SMALL, PAGES, device=CPU, poison=True)
    assert pool.state(1).isnan().all() and pool.state(2).isnan().all() and pool.index_state(1).isnan().all()
    assert pool.swa(1).eq(0).all()


@pytest.mark.parametrize("cache_dtype", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("indexer_dtype", ["plain", "fp8", "mxfp4"])
def test_formats_write_and_read_the_buffers(cache_dtype, indexer_dtype):
    layout = CacheLayout(
        compress_ratios=(4, 128), sliding_window=128, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype
    )
    pool = CachePool(layout, PAGES, device=CPU)
    for buffer, rows in (
        (pool.swa(0), pool.swa_rows),
        (pool.compressed(0), pool.compressed_rows(0)),
        (pool.compressed(1), pool.compressed_rows(1)),
        (pool.index_keys(0), pool.index_rows(0)),
        (pool.state(0), pool.state_rows(0)),
        (pool.state(1), pool.state_rows(1)),
        (pool.index_state(0), pool.index_state_rows(0)),
    ):
        last = buffer.shape[0] * rows.rows_per_page - 1
        slots = torch.tensor([last, -1, rows.rows_per_page])
        rows.write(buffer, slots, torch.ones(3, rows.width))
        back = rows.read(buffer, slots)
        assert back.shape == (3, rows.width)
        assert back[1].eq(0).all() and back[0].ne(0).any() and torch.equal(back[0], back[2])


def test_draft_pool_takes_the_page_counts_of_the_target():
    draft = CachePool(CacheLayout(compress_ratios=(0,), sliding_window=16), PAGES, device=CPU)
    assert draft.num_pages == {SWA_GROUP: 2}
    assert draft.swa(0).shape == (2, 37440)


def test_group_that_the_target_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"no number of pages for cache group v4\.c4a\.compressor_state"):
        CachePool(SMALL, {SWA_GROUP: 4}, device=CPU)


@pytest.mark.parametrize(
    ("layer", "accessor", "missing"),
    [
        (0, "compressed", "compressed K/V"),
        (0, "compressed_rows", "compressed K/V"),
        (0, "state", "compressor state"),
        (0, "state_rows", "compressor state"),
        (0, "index_keys", "indexer key"),
        (2, "index_keys", "indexer key"),
        (2, "index_rows", "indexer key"),
        (2, "index_state", "indexer state"),
        (2, "index_state_rows", "indexer state"),
    ],
)
def test_accessor_names_the_layer_and_the_missing_cache(layer, accessor, missing):
    pool = CachePool(SMALL, PAGES, device=CPU)
    with pytest.raises(ConfigError, match=f"layer {layer} has no {missing} cache"):
        getattr(pool, accessor)(layer)


@pytest.mark.parametrize("layer", [-1, 3])
def test_layer_outside_the_pool_is_refused(layer):
    with pytest.raises(ConfigError, match=f"layer {layer} is out of range"):
        CachePool(SMALL, PAGES, device=CPU).swa(layer)


def test_num_bytes_is_pages_times_page_bytes():
    expected = sum(PAGES[group_id] * size for group_id, size in SMALL.page_bytes().items())
    assert CachePool(SMALL, PAGES, device=CPU).num_bytes() == expected
