"""How many tokens fit into a memory budget; pure integers, measures and allocates nothing.

The result counts pages of ``layout.page_size`` raw tokens. It is turned back into pages per group by the same
sizing functions that build the pool, so a pool of the result has exactly the predicted bytes. It is for serving engines
that fill the memory of a device; runs of this project size a pool by batch and context (``specdec.cache.sizing``).
"""

from dataclasses import replace

from backends.deepseek_v4.cache_groups import CacheLayout
from specdec.cache.sizing import PoolLimits, pool_pages
from specdec.cache.spec import ceil_div
from specdec.checks import integer, positive_int
from specdec.errors import ConfigError


def estimated_pages(
    layout: CacheLayout, limits: PoolLimits, *, decode_tokens: int, overlap_depth: int = 0
) -> dict[str, int]:
    """``pool_pages`` of every group of the layout. ConfigError unless ``limits.total_tokens`` is positive."""
    positive_int("total_tokens", limits.total_tokens)
    return {
        spec.group_id: pool_pages(spec, limits, decode_tokens=decode_tokens, overlap_depth=overlap_depth)
        for spec in layout.group_specs()
    }


def draft_cell_bytes(draft: CacheLayout | None, *, explicit: int = 0, generic: int = 0, num_layers: int = 0) -> int:
    """Bytes per token that a draft model adds to the target's caches.

    An ``explicit`` size wins; then the draft's own V4 layout; else ``generic`` bytes per layer and token
    times the draft's ``num_layers``, which is 0 without a draft.
    """
    if explicit:
        return explicit
    if draft is not None:
        return draft.cache_cell_bytes(draft.num_layers)
    return generic * num_layers


def cache_bytes(
    layout: CacheLayout, limits: PoolLimits, *, num_pages: int, decode_tokens: int, draft_cell: int = 0
) -> int:
    """Bytes of the target's pool and the draft's share when the pool serves ``num_pages`` pages of tokens.

    ``limits.total_tokens`` is replaced by what the pages hold.
    """
    total_tokens = num_pages * layout.page_size
    sized = replace(limits, total_tokens=total_tokens)
    pages = estimated_pages(layout, sized, decode_tokens=decode_tokens)
    page_bytes = layout.page_bytes()
    return sum(count * page_bytes[group] for group, count in pages.items()) + total_tokens * draft_cell


def profile_pages(
    layout: CacheLayout, limits: PoolLimits, *, budget_bytes: int, decode_tokens: int = 1, draft_cell: int = 0
) -> int:
    """Largest number of pages whose ``cache_bytes`` stay within the budget; 0 when not even one page fits.

    Without a compressing layer every cache is a window, so the pages for all live requests are enough.
    """

    def fits(num_pages: int) -> bool:
        size = cache_bytes(layout, limits, num_pages=num_pages, decode_tokens=decode_tokens, draft_cell=draft_cell)
        return size <= budget_bytes

    if budget_bytes <= 0 or not fits(1):
        return 0
    if not layout.compressing_kinds:
        return max(1, ceil_div(limits.max_live * limits.max_context, layout.page_size))
    # Bytes grow with the pages, so the answer lies between a page count that fits and one that does not.
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def cap_pages(num_pages: int, *, max_total_tokens: int, page_size: int) -> int:
    """``num_pages`` limited by a user's token cap, rounded down to whole pages.

    Raises ConfigError for a cap below one page.
    """
    integer("max_total_tokens", max_total_tokens, low=0)
    allowed = max_total_tokens // page_size
    if allowed < 1:
        raise ConfigError(f"max_total_tokens must be at least one page of {page_size} tokens, got {max_total_tokens}")
    return min(num_pages, allowed)
