"""Groups, names, page bytes and cell sizes of V4 layers."""

import pytest

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    AttentionKind,
    CacheLayout,
    compressed_group,
    parse_state_group,
    state_group,
)
from specdec.cache.spec import Family, Retention
from specdec.errors import ConfigError

SWA, CSA, HCA = AttentionKind.SWA, AttentionKind.CSA, AttentionKind.HCA
FLASH_RATIOS = (1, 1, *(4, 128) * 20, 4)
FULL, SLIDING = Retention.FULL_HISTORY, Retention.SLIDING_WINDOW


def layout(*ratios: int, **fields) -> CacheLayout:
    return CacheLayout(compress_ratios=ratios, sliding_window=128, **fields)


def test_groups_have_the_sizes_of_the_serving_engine():
    groups = [
        (s.group_id, s.retention, s.family, s.rows_per_page, s.entry_stride_tokens, s.sliding_window_tokens)
        for s in layout(0, 4, 128).group_specs()
    ]
    assert groups == [
        ("v4.swa_kv", SLIDING, Family.STATE, 64, 1, 128),
        ("v4.c4a.compressor_state", SLIDING, Family.STATE, 4, 1, 8),
        ("v4.c4a.compressed_kv", FULL, Family.HISTORY, 64, 4, 0),
        ("v4.c128a.compressor_state", SLIDING, Family.STATE, 8, 1, 128),
        ("v4.c128a.compressed_kv", FULL, Family.HISTORY, 2, 128, 0),
        ("v4.c4a.indexer_compressor_state", SLIDING, Family.STATE, 4, 1, 8),
    ]


@pytest.mark.parametrize(
    ("ratios", "names"),
    [
        ((0, 1), [SWA_GROUP]),
        ((4,), [SWA_GROUP, state_group(CSA), compressed_group(CSA), INDEX_STATE_GROUP]),
        ((128, 0, 128), [SWA_GROUP, state_group(HCA), compressed_group(HCA)]),
    ],
)
def test_groups_follow_the_ratios_of_the_layers(ratios, names):
    assert [spec.group_id for spec in layout(*ratios).group_specs()] == names


def test_window_group_takes_the_window_of_the_model():
    small = CacheLayout(compress_ratios=(0, 4), sliding_window=32)
    assert [spec.sliding_window_tokens for spec in small.group_specs()] == [32, 8, 0, 8]


@pytest.mark.parametrize(("ratio", "kind"), [(0, SWA), (1, SWA), (4, CSA), (128, HCA)])
def test_kind_of_a_ratio(ratio, kind):
    assert AttentionKind.of(ratio) is kind


@pytest.mark.parametrize(
    ("group_id", "kind"),
    [
        ("v4.c4a.compressor_state", CSA),
        ("v4.c128a.compressor_state", HCA),
        ("v4.c4a.indexer_compressor_state", None),
        ("v4.c4a.compressed_kv", None),
        ("v4.c1a.compressor_state", None),
        ("v4.c8a.compressor_state", None),
        ("v4.c04a.compressor_state", None),
        ("xv4.c4a.compressor_state", None),
        ("v4.c4a.compressor_state.more", None),
        ("v4.ca.compressor_state", None),
        ("", None),
    ],
)
def test_state_group_names_parse_back_only_in_that_exact_shape(group_id, kind):
    assert parse_state_group(group_id) is kind


@pytest.mark.parametrize("name", [state_group, compressed_group])
def test_window_layers_have_no_compressed_group(name):
    with pytest.raises(ConfigError, match="compress_ratio=1 has no compressed cache group"):
        name(SWA)


def test_page_bytes_per_layer():
    sizes = layout(0, 4, 128)
    assert sizes.layer_page_bytes(SWA) == {SWA_GROUP: 37440}
    assert sizes.layer_page_bytes(CSA) == {
        SWA_GROUP: 37440,
        state_group(CSA): 32768,
        compressed_group(CSA): 41792,
        INDEX_STATE_GROUP: 8192,
    }
    assert sizes.layer_page_bytes(HCA) == {
        SWA_GROUP: 37440,
        state_group(HCA): 32768,
        compressed_group(HCA): 1728,
    }


def test_page_bytes_of_a_43_layer_stack():
    assert layout(*FLASH_RATIOS).page_bytes() == {
        SWA_GROUP: 1609920,
        state_group(CSA): 688128,
        compressed_group(CSA): 877632,
        state_group(HCA): 655360,
        compressed_group(HCA): 34560,
        INDEX_STATE_GROUP: 172032,
    }


def test_plain_caches_have_unpadded_pages():
    plain = layout(4, head_dim=96, rope_dim=32, index_head_dim=48, cache_dtype="bf16", indexer_dtype="plain")
    sizes = plain.layer_page_bytes(CSA)
    assert sizes[SWA_GROUP] == 64 * 96 * 2
    assert sizes[compressed_group(CSA)] == 64 * 96 * 2 + 64 * 48 * 2


@pytest.mark.parametrize(
    ("page_size", "indexer_dtype", "swa", "csa", "hca", "all_layers"),
    [
        (64, "mxfp4", 585, 585, 27, 16771),
        (64, "fp8", 585, 585, 27, 16835),
        (256, "mxfp4", 585, 147, 7, 16262),
    ],
)
def test_cell_bytes(page_size, indexer_dtype, swa, csa, hca, all_layers):
    cells = layout(1, 4, 128, page_size=page_size, indexer_dtype=indexer_dtype)
    assert cells.swa_cell_bytes() == swa
    assert cells.compressed_cell_bytes(CSA) == csa
    assert cells.compressed_cell_bytes(HCA) == hca
    assert cells.cache_cell_bytes(3) == all_layers
    assert cells.cache_cell_bytes(1) == swa
    assert cells.cache_cell_bytes(0) == 0


def test_cells_of_more_layers_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="num_layers must be an integer from 0 to 1, got 2"):
        layout(4).cache_cell_bytes(2)


@pytest.mark.parametrize(("start", "stop"), [(4, 5), (3, 5), (2, 2), (-1, 1), (3, 2)])
def test_slice_outside_the_layers_is_refused(start, stop):
    with pytest.raises(ConfigError, match="out of range"):
        layout(0, 4, 128, 0).slice_layers(start, stop)


def test_slice_keeps_everything_but_the_layers():
    whole = layout(0, 4, 128, cache_dtype="bf16", indexer_dtype="fp8", page_size=64)
    part = whole.slice_layers(1, 3)
    assert part == layout(4, 128, cache_dtype="bf16", indexer_dtype="fp8", page_size=64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 64}, "head_dim must exceed rope_dim=64, got 64"),
        ({"head_dim": 500}, "multiple of 64"),
        ({"cache_dtype": "int8"}, "cache_dtype must be one of fp8, fp32, bf16"),
        ({"indexer_dtype": "fp4"}, "indexer_dtype must be one of plain, fp8, mxfp4"),
        ({"index_head_dim": 100}, "index_head_dim"),
        ({"page_size": 0}, "page_size must be an integer of at least 1, got 0"),
    ],
)
def test_sizes_that_cannot_be_stored_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        layout(4, **fields)


@pytest.mark.parametrize("window", [0, -1, None])
def test_missing_window_is_refused(window):
    with pytest.raises(ConfigError, match="sliding_window must be an integer of at least 1"):
        CacheLayout(compress_ratios=(0,), sliding_window=window)
