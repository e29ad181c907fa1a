"""Budget in bytes to pages of tokens: exact, monotone, and the same as a pool that is built."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.profile import cache_bytes, cap_pages, draft_cell_bytes, estimated_pages, profile_pages
from specdec.cache.sizing import PoolLimits
from specdec.errors import ConfigError

FLASH = CacheLayout(compress_ratios=(1, 1, *(4, 128) * 20, 4), sliding_window=128)
SMALL = CacheLayout(compress_ratios=(1, 4, 128), sliding_window=128, page_size=64)
LIMITS = PoolLimits(max_live=2, scheduled_tokens=256, total_tokens=0, max_context=1024)


def test_budget_of_80_gib_gives_the_engine_number():
    limits = PoolLimits(max_live=160, scheduled_tokens=8192, total_tokens=0, max_context=4096)
    assert profile_pages(FLASH, limits, budget_bytes=80 << 30) == 87856


@given(num_pages=st.integers(1, 500), draft_cell=st.sampled_from([0, 585]), slack=st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_profile_finds_the_largest_page_count_that_fits(num_pages, draft_cell, slack):
    exact = cache_bytes(SMALL, LIMITS, num_pages=num_pages, decode_tokens=1, draft_cell=draft_cell)
    found = profile_pages(SMALL, LIMITS, budget_bytes=exact + slack, draft_cell=draft_cell)
    assert found >= num_pages
    used = cache_bytes(SMALL, LIMITS, num_pages=found, decode_tokens=1, draft_cell=draft_cell)
    more = cache_bytes(SMALL, LIMITS, num_pages=found + 1, decode_tokens=1, draft_cell=draft_cell)
    assert used <= exact + slack < more


def test_pool_of_the_profiled_pages_has_the_predicted_bytes():
    budget = cache_bytes(SMALL, LIMITS, num_pages=8, decode_tokens=1)
    num_pages = profile_pages(SMALL, LIMITS, budget_bytes=budget)
    assert num_pages == 8
    limits = PoolLimits(max_live=2, scheduled_tokens=256, total_tokens=num_pages * SMALL.page_size, max_context=1024)
    pool = CachePool(SMALL, estimated_pages(SMALL, limits, decode_tokens=1), device=torch.device("cpu"))
    assert pool.num_bytes() == budget


@pytest.mark.parametrize("budget", [-5, 0, 1])
def test_budget_below_one_page_gives_no_page(budget):
    assert profile_pages(SMALL, LIMITS, budget_bytes=budget) == 0


def test_smallest_budget_that_fits_gives_one_page():
    # A small scheduled-token budget: the second page adds only history.
    limits = PoolLimits(max_live=1, scheduled_tokens=1, total_tokens=0, max_context=1024)
    one = cache_bytes(SMALL, limits, num_pages=1, decode_tokens=1)
    assert profile_pages(SMALL, limits, budget_bytes=one) >= 1
    assert profile_pages(SMALL, limits, budget_bytes=one - 1) == 0


@pytest.mark.parametrize(("live", "context", "pages"), [(2, 1024, 32), (3, 65, 4), (1, 1, 1), (0, 10, 1)])
def test_layers_without_compression_need_the_pages_of_their_contexts(live, context, pages):
    windows = CacheLayout(compress_ratios=(0, 1), sliding_window=128, page_size=64)
    limits = PoolLimits(max_live=live, scheduled_tokens=8, total_tokens=0, max_context=context)
    assert profile_pages(windows, limits, budget_bytes=1 << 30) == pages


def test_scheduled_tokens_are_not_multiplied_by_requests():
    few = PoolLimits(max_live=160, scheduled_tokens=64, total_tokens=0, max_context=4096)
    many = PoolLimits(max_live=160, scheduled_tokens=8192, total_tokens=0, max_context=4096)
    extra = cache_bytes(FLASH, many, num_pages=100, decode_tokens=1) - cache_bytes(
        FLASH, few, num_pages=100, decode_tokens=1
    )
    sizes = FLASH.page_bytes()
    per_group = {spec.group_id: spec for spec in FLASH.group_specs() if spec.is_sliding}
    assert extra == sum((8192 - 64) // spec.tokens_per_page * sizes[g] for g, spec in per_group.items())


def test_draft_share_prefers_an_explicit_size():
    draft = FLASH.slice_layers(0, 1)
    assert draft_cell_bytes(draft, explicit=777, generic=11, num_layers=3) == 777
    assert draft_cell_bytes(draft, generic=11, num_layers=3) == 585
    assert draft_cell_bytes(None, generic=11, num_layers=3) == 33
    assert draft_cell_bytes(None) == 0


@pytest.mark.parametrize(("cap", "pages"), [(64, 1), (127, 1), (128, 2), (10**9, 50)])
def test_token_cap_is_rounded_down_to_pages(cap, pages):
    assert cap_pages(50, max_total_tokens=cap, page_size=64) == pages


@pytest.mark.parametrize("cap", [0, 63])
def test_token_cap_below_one_page_is_refused(cap):
    with pytest.raises(ConfigError, match=f"at least one page of 64 tokens, got {cap}"):
        cap_pages(50, max_total_tokens=cap, page_size=64)


def test_estimate_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="total_tokens must be an integer of at least 1, got 0"):
        estimated_pages(SMALL, LIMITS, decode_tokens=1)
