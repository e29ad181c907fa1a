"""Page counts, horizons and table widths against the numbers of the serving engine and by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import CacheLayout
from specdec.cache.sizing import (
    PoolLimits,
    decode_horizon,
    guaranteed_pages,
    pool_pages,
    table_columns,
)
from specdec.cache.spec import CacheGroupSpec, Retention
from specdec.errors import ConfigError

SPECS = CacheLayout(compress_ratios=(1, 4, 128), sliding_window=128).group_specs()
SWA = SPECS[0]
LIMITS = PoolLimits(max_live=2, scheduled_tokens=1, total_tokens=128, max_context=128)


def sliding(rows_per_page: int, window: int) -> CacheGroupSpec:
    return CacheGroupSpec(
        group_id="g",
        retention=Retention.SLIDING_WINDOW,
        rows_per_page=rows_per_page,
        sliding_window_tokens=window,
    )


@pytest.mark.parametrize(
    ("live", "scheduled", "total", "context", "width", "overlap", "pages"),
    [
        (2, 1, 128, 128, 1, 0, (8, 8, 4, 36, 4, 8)),
        (2, 1, 512, 512, 1, 0, (8, 8, 5, 36, 5, 8)),
        (80, 8192, 163840, 80000, 4, 0, (369, 2289, 721, 2385, 721, 2289)),
        (80, 8192, 163840, 80000, 4, 1, (449, 2369, 801, 2465, 801, 2369)),
    ],
)
def test_pool_pages_equal_the_engine_numbers(live, scheduled, total, context, width, overlap, pages):
    limits = PoolLimits(max_live=live, scheduled_tokens=scheduled, total_tokens=total, max_context=context)
    counts = [pool_pages(spec, limits, decode_tokens=width, overlap_depth=overlap) for spec in SPECS]
    assert tuple(counts) == pages


def test_pool_pages_count_scheduled_tokens_once_for_all_requests():
    limits = PoolLimits(max_live=10, scheduled_tokens=100, total_tokens=20, max_context=4096)
    assert pool_pages(sliding(4, 8), limits, decode_tokens=1) == 10 * 2 + 5 + 10 + 1


def test_safety_pages_are_added_to_every_group():
    more = replace(LIMITS, safety_pages=3)
    for spec in SPECS:
        assert pool_pages(spec, more, decode_tokens=1) == pool_pages(spec, LIMITS, decode_tokens=1) + 3
        assert guaranteed_pages(spec, more, horizon=1) == guaranteed_pages(spec, LIMITS, horizon=1) + 3


@pytest.mark.parametrize(
    ("context", "width", "overlap", "columns"),
    [
        (4096, 1, 0, (3, 3, 17, 17, 17, 3)),
        (4096, 4, 0, (4, 4, 17, 18, 17, 4)),
        (4096, 4, 1, (4, 5, 17, 18, 17, 5)),
        (128, 4, 0, (4, 4, 1, 18, 1, 4)),
        (1048576, 4, 1, (4, 5, 4097, 18, 4097, 5)),
    ],
)
def test_table_columns_equal_the_engine_numbers(context, width, overlap, columns):
    # The last full-history column of context 128 shows the first 256 tokens.
    horizon = (overlap + 1) * width
    assert tuple(table_columns(spec, max_context=context, horizon=horizon) for spec in SPECS) == columns


@pytest.mark.parametrize(
    ("width", "drafted_tokens", "overlap", "plain", "drafted"),
    [(1, 0, 0, 1, 1), (1, 1, 0, 1, 1), (1, 4, 0, 1, 4), (4, 3, 0, 4, 6), (4, 3, 1, 8, 10), (8, 0, 1, 16, 16)],
)
def test_decode_horizon_is_longer_for_drafted_groups(width, drafted_tokens, overlap, plain, drafted):
    common = {"width": width, "num_draft_tokens": drafted_tokens, "overlap_depth": overlap}
    assert decode_horizon(**common) == plain
    assert decode_horizon(**common, drafted=True) == drafted
    # max(N, N + K - 1) + d * N
    assert drafted == max(width, width + drafted_tokens - 1) + overlap * width


@pytest.mark.parametrize(
    ("spec", "horizon", "pages"),
    [
        # Sliding: live * (cdiv(W - 2 + h, page) + 1) + cdiv(min(scheduled, total), page) + live + 1.
        (SWA, 6, 8 * (3 + 1) + 1 + 8 + 1),
        (sliding(4, 8), 4, 8 * (3 + 1) + 16 + 8 + 1),
        # History: cdiv(total, page) + live * cdiv(h, page) + live + 1.
        (SPECS[2], 4, 2 + 8 + 8 + 1),
    ],
)
def test_guaranteed_pages_by_hand(spec, horizon, pages):
    limits = PoolLimits(max_live=8, scheduled_tokens=64, total_tokens=512, max_context=256)
    assert guaranteed_pages(spec, limits, horizon=horizon) == pages


@given(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=6), horizon=st.integers(1, 20), page=st.integers(1, 9))
@settings(deadline=None, max_examples=200)
def test_guaranteed_history_pages_suffice_for_any_lengths(lengths, horizon, page):
    spec = CacheGroupSpec(group_id="g", retention=Retention.FULL_HISTORY, rows_per_page=page)
    limits = PoolLimits(max_live=len(lengths), scheduled_tokens=1, total_tokens=sum(lengths), max_context=max(lengths))
    needed = sum(spec.pages_for(length + horizon) for length in lengths)
    assert guaranteed_pages(spec, limits, horizon=horizon) >= needed + 1


@given(
    rows_per_page=st.integers(1, 9),
    window=st.integers(1, 40),
    first=st.integers(0, 200),
    horizon=st.integers(1, 40),
)
@settings(deadline=None, max_examples=300)
def test_table_columns_show_every_page_of_any_alignment(rows_per_page, window, first, horizon):
    spec = sliding(rows_per_page, window)
    lowest = max(0, first - window + 1)
    pages = {position // rows_per_page for position in range(lowest, first + horizon)}
    assert table_columns(spec, max_context=first, horizon=horizon) >= len(pages)


@pytest.mark.parametrize("name", ["max_live", "scheduled_tokens", "total_tokens", "max_context", "safety_pages"])
def test_limits_refuse_negative_numbers_by_name(name):
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 0, got -1"):
        replace(LIMITS, **{name: -1})


@pytest.mark.parametrize(("width", "overlap"), [(-1, 0), (0, 1), (1, 2), (1, -1)])
def test_pool_pages_refuses_bad_decode_settings(width, overlap):
    with pytest.raises(ConfigError, match="decode_tokens|overlap_depth"):
        pool_pages(SWA, LIMITS, decode_tokens=width, overlap_depth=overlap)


def test_pool_pages_allows_no_decoding_without_overlap():
    assert pool_pages(SWA, LIMITS, decode_tokens=0) == pool_pages(SWA, LIMITS, decode_tokens=1)


@pytest.mark.parametrize(("width", "drafted", "overlap"), [(0, 0, 0), (1, -1, 0), (1, 0, 2), (1, 0, -1)])
def test_decode_horizon_refuses_bad_settings(width, drafted, overlap):
    with pytest.raises(ConfigError, match="width|num_draft_tokens|overlap_depth"):
        decode_horizon(width=width, num_draft_tokens=drafted, overlap_depth=overlap)


@pytest.mark.parametrize(("context", "horizon"), [(-1, 1), (1, 0), (1, -4)])
def test_table_columns_refuses_bad_sizes(context, horizon):
    with pytest.raises(ConfigError, match="max_context|horizon"):
        table_columns(SWA, max_context=context, horizon=horizon)


@pytest.mark.parametrize(
    "fields",
    [
        {"rows_per_page": 0},
        {"entry_stride_tokens": 0},
        {"sliding_window_tokens": 0},
        {"retention": Retention.FULL_HISTORY},
    ],
)
def test_group_spec_refuses_sizes_that_are_no_group(fields):
    with pytest.raises(ConfigError, match="g: "):
        replace(sliding(4, 8), **fields)
