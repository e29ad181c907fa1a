"""How many pages a group needs and how wide its block table is; pure integers, no allocation.

The *horizon* of a group is how far beyond the first query position one decode reservation may reach, in raw
tokens. It is an argument everywhere, because groups that draft layers write reach further than the others.
"""

from dataclasses import dataclass

from specdec.cache.spec import DUMMY_PAGE, CacheGroupSpec, ceil_div
from specdec.checks import integer, positive_int

NUM_DUMMY_PAGES = DUMMY_PAGE + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLimits:
    """What bounds the number of pages in use. Raises ConfigError for negative numbers.

    max_live          requests that hold pages at the same time
    scheduled_tokens  most prompt tokens of one forward pass, over all requests
    total_tokens      most committed tokens over all requests
    max_context       most tokens of one request
    safety_pages      pages added to every group
    """

    max_live: int
    scheduled_tokens: int
    total_tokens: int
    max_context: int
    safety_pages: int = 0

    def __post_init__(self) -> None:
        integer("max_live", self.max_live, low=0)
        integer("scheduled_tokens", self.scheduled_tokens, low=0)
        integer("total_tokens", self.total_tokens, low=0)
        integer("max_context", self.max_context, low=0)
        integer("safety_pages", self.safety_pages, low=0)


def draft_reach(num_draft_tokens: int) -> int:
    """Tokens that a chain of ``num_draft_tokens`` writes beyond the newest verified token.

    Draft token 1 comes from the catch-up pass over verified positions, so only the other K - 1 steps write.
    """
    return max(0, num_draft_tokens - 1)


def decode_horizon(*, width: int, num_draft_tokens: int, overlap_depth: int = 0, drafted: bool = False) -> int:
    """Raw tokens to reserve from the first query position of a decode row.

    A verify pass writes ``width`` positions. A drafted group also takes the draft steps that follow full
    acceptance. Each overlapped round in flight may move the start by ``width``.
    Raises ConfigError for a width below 1, a negative draft length or an overlap depth other than 0 and 1.
    """
    positive_int("width", width)
    integer("num_draft_tokens", num_draft_tokens, low=0)
    integer("overlap_depth", overlap_depth, low=0, high=1)
    extra = draft_reach(num_draft_tokens) if drafted else 0
    return width + extra + overlap_depth * width


def resident_tokens(spec: CacheGroupSpec, *, max_context: int) -> int:
    """Raw tokens behind a query that a group keeps: the window without the current token, or everything."""
    return min(spec.sliding_window_tokens - 1, max_context) if spec.is_sliding else max_context


def pool_pages(spec: CacheGroupSpec, limits: PoolLimits, *, decode_tokens: int, overlap_depth: int = 0) -> int:
    """Pages of a group by the estimate that serving engines use; page 0 is counted.

    It is enough for typical mixes of lengths and not a guarantee (see ``guaranteed_pages``).
    Raises ConfigError for a negative width, an overlap depth other than 0 and 1, or overlap without width.
    """
    integer("overlap_depth", overlap_depth, low=0, high=1)
    integer("decode_tokens", decode_tokens, low=1 if overlap_depth else 0)
    page = spec.tokens_per_page
    protected = limits.max_live * ceil_div(overlap_depth * decode_tokens, page)
    fixed = limits.max_live + protected + NUM_DUMMY_PAGES + limits.safety_pages
    if not spec.is_sliding:
        return ceil_div(limits.total_tokens, page) + fixed
    resident = ceil_div(resident_tokens(spec, max_context=limits.max_context), page)
    scheduled = ceil_div(min(limits.scheduled_tokens, limits.total_tokens), page)
    return limits.max_live * resident + scheduled + fixed


def guaranteed_pages(spec: CacheGroupSpec, limits: PoolLimits, *, horizon: int) -> int:
    """Pages that suffice for every mix of lengths and alignments within ``limits``; page 0 is counted.

    It holds when every live request reserves at most ``horizon`` tokens past its committed ones, prompt
    chunks aside, and gives the expired pages of a chunk back before the next pass is reserved.
    Raises ConfigError for a horizon below 1.
    """
    positive_int("horizon", horizon)
    page = spec.tokens_per_page
    fixed = limits.max_live + NUM_DUMMY_PAGES + limits.safety_pages
    if not spec.is_sliding:
        return ceil_div(limits.total_tokens, page) + limits.max_live * ceil_div(horizon, page) + fixed
    # A span of n tokens touches at most ceil((n - 1) / page) + 1 pages, whatever its alignment.
    resident = ceil_div(spec.sliding_window_tokens - 2 + horizon, page) + 1
    scheduled = ceil_div(min(limits.scheduled_tokens, limits.total_tokens), page)
    return limits.max_live * resident + scheduled + fixed


def table_columns(spec: CacheGroupSpec, *, max_context: int, horizon: int) -> int:
    """Columns of a block table that can show every page of a request that reserves ``horizon`` tokens.

    For recorded graphs ``horizon`` is the decode horizon; where prompt chunks pass through the same table it
    is the larger of that and the longest chunk with its draft reach.
    Raises ConfigError for a negative context or a horizon below 1.
    """
    integer("max_context", max_context, low=0)
    positive_int("horizon", horizon)
    columns = ceil_div(resident_tokens(spec, max_context=max_context) + horizon, spec.tokens_per_page)
    # A window may begin in the middle of a page.
    return columns + 1 if spec.is_sliding else columns
