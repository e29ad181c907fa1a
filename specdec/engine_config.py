"""EngineConfig, and the cache sizes that follow from it; knows no tensors."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specdec.cache.sizing import (
    NUM_DUMMY_PAGES,
    PoolLimits,
    decode_horizon,
    draft_reach,
    guaranteed_pages,
    table_columns,
)
from specdec.cache.spec import CacheGroupSpec, ceil_div
from specdec.checks import flag, integer, one_of, positive_int
from specdec.errors import CapacityError, ConfigError

MIN_PAGES = NUM_DUMMY_PAGES + 1
KERNELS = ("reference", "triton", "flash_mla")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of the engine. Raises ConfigError for values out of range.

    max_batch        requests that run at the same time
    max_context      most tokens of a request, prompt and output; None: what the target allows
    prefill_chunk    most prompt tokens of one pass
    num_pages        most pages of every cache group, the dummy page included; None: enough for max_batch
                     requests of max_context tokens. Fewer pages make requests wait or compute their prefix again
    batch_invariant  whether every pass has at most ``fixed_rows`` tokens, so that results do not depend on
                     what shares a pass
    fixed_rows       rows that the target pads its products to under ``batch_invariant``
    graphs           whether decode rounds are recorded as CUDA graphs; None: on a CUDA device, where the target can.
                     True without CUDA calls the function that would be recorded, which is for tests
    graph_batch_sizes  batches that are recorded; a smaller one is padded to the next, one above all runs eagerly.
                     None: the powers of two below max_batch, and max_batch
    kernels          implementation of the target's operators, as its loader chose it: for the report, and because
                     those of ``reference`` cannot be recorded on a GPU
    record_probs     whether step rows have the probability of every drafted token under target and draft
    seed             seed of the run, for requests without a seed of their own
    """

    max_batch: int = 1
    max_context: int | None = None
    prefill_chunk: int = 512
    num_pages: int | None = None
    batch_invariant: bool = False
    fixed_rows: int = 8
    graphs: bool | None = None
    graph_batch_sizes: tuple[int, ...] | None = None
    kernels: str | None = None
    record_probs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        positive_int("max_batch", self.max_batch, where="engine.max_batch")
        positive_int("prefill_chunk", self.prefill_chunk, where="engine.prefill_chunk")
        positive_int("fixed_rows", self.fixed_rows, where="engine.fixed_rows")
        flag("record_probs", self.record_probs, where="engine.record_probs")
        flag("batch_invariant", self.batch_invariant, where="engine.batch_invariant")
        integer("seed", self.seed, low=-(2**63), high=2**63 - 1, where="sampling.seed")
        if self.graphs is not None:
            flag("graphs", self.graphs, where="engine.graphs")
        if self.graph_batch_sizes is not None:
            if not self.graph_batch_sizes:
                raise ConfigError("graph_batch_sizes must have an entry, got none (conf: engine.graph_batch_sizes)")
            for size in self.graph_batch_sizes:
                where = "engine.graph_batch_sizes, engine.max_batch"
                integer("graph_batch_sizes", size, low=1, high=self.max_batch, where=where)
        if self.kernels is not None:
            one_of("kernels", self.kernels, KERNELS, where="engine.kernels")
        if self.max_context is not None:
            integer("max_context", self.max_context, low=2, where="engine.max_context")
        if self.num_pages is not None:
            integer("num_pages", self.num_pages, low=MIN_PAGES, where="engine.num_pages")

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batches that are recorded, ascending."""
        if self.graph_batch_sizes is not None:
            return tuple(sorted(set(self.graph_batch_sizes)))
        powers = [1 << exponent for exponent in range((self.max_batch - 1).bit_length())]
        return (*powers, self.max_batch)

    @property
    def max_pass_tokens(self) -> int | None:
        """Most tokens of a pass; None without a limit."""
        return self.fixed_rows if self.batch_invariant else None

    @property
    def max_chunk_tokens(self) -> int:
        """Most prompt tokens of a pass."""
        return min(self.prefill_chunk, self.fixed_rows) if self.batch_invariant else self.prefill_chunk

    def context_limit(self, target_context: int) -> int:
        """Most tokens of a request; raises ConfigError when more are asked for than the target allows."""
        if self.max_context is None:
            return target_context
        return integer("max_context", self.max_context, low=2, high=target_context, where="engine.max_context")

    def check_width(self, num_draft_tokens: int) -> None:
        """Raise ConfigError when the verify rows of a full batch exceed ``fixed_rows``."""
        widest = self.max_batch * (num_draft_tokens + 1)
        if self.batch_invariant and widest > self.fixed_rows:
            raise ConfigError(
                f"fixed_rows must be at least max_batch * (num_draft_tokens + 1) = {self.max_batch} * "
                f"{num_draft_tokens + 1} = {widest} under batch_invariant, got {self.fixed_rows} "
                f"(conf: engine.fixed_rows, engine.max_batch, drafter.num_draft_tokens)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlan:
    """Sizes of the caches of an engine; the pools of target and draft must have these pages.

    specs         cache groups of the target
    num_pages     pages of each group, the dummy page 0 included
    columns       block table columns of each group
    draft_groups  ids of the groups that the draft model writes
    reach         tokens beyond a verify pass that the draft model writes
    chunk         most prompt tokens of a pass
    width         most tokens of a verify pass per request
    """

    specs: tuple[CacheGroupSpec, ...]
    num_pages: dict[str, int]
    columns: dict[str, int]
    draft_groups: frozenset[str]
    reach: int
    chunk: int
    width: int

    def check_servable(self, request_id: str, max_tokens: int) -> None:
        """Raise CapacityError when a request of ``max_tokens`` needs more pages than exist, were it alone."""
        for spec in self.specs:
            needed, available = self._needed(spec, max_tokens), self.num_pages[spec.group_id] - NUM_DUMMY_PAGES
            if needed > available:
                raise CapacityError(
                    f"request {request_id} with up to {max_tokens} tokens needs {needed} pages of "
                    f"{spec.group_id}, {available} are available (conf: engine.num_pages)"
                )

    def _needed(self, spec: CacheGroupSpec, max_tokens: int) -> int:
        whole = spec.pages_for(max_tokens)
        if not spec.is_sliding:
            return whole
        reach = self.reach if spec.group_id in self.draft_groups else 0
        span = max(min(self.chunk, max_tokens), self.width) + reach
        return min(whole, ceil_div(spec.sliding_window_tokens - 2 + span, spec.tokens_per_page) + 1)


def plan_cache(
    specs: Sequence[CacheGroupSpec],
    config: EngineConfig,
    *,
    max_context: int,
    num_draft_tokens: int,
    draft_groups: Collection[str] = (),
) -> CachePlan:
    """Pages and table columns for any mix of requests that ``config`` allows.

    num_draft_tokens  K of the drafter
    draft_groups      ids of the groups that the draft model writes
    """
    limits = PoolLimits(
        max_live=config.max_batch,
        scheduled_tokens=config.max_chunk_tokens,
        total_tokens=config.max_batch * max_context,
        max_context=max_context,
    )
    width, chunk = num_draft_tokens + 1, min(config.max_chunk_tokens, max_context)
    num_pages, columns = {}, {}
    for spec in specs:
        drafted = spec.group_id in draft_groups
        horizon = decode_horizon(width=width, num_draft_tokens=num_draft_tokens, drafted=drafted)
        enough = guaranteed_pages(spec, limits, horizon=horizon)
        num_pages[spec.group_id] = enough if config.num_pages is None else min(enough, config.num_pages)
        longest = max(horizon, chunk + (draft_reach(num_draft_tokens) if drafted else 0))
        columns[spec.group_id] = table_columns(spec, max_context=max_context, horizon=longest)
    return CachePlan(
        specs=tuple(specs),
        num_pages=num_pages,
        columns=columns,
        draft_groups=frozenset(draft_groups),
        reach=draft_reach(num_draft_tokens),
        chunk=chunk,
        width=width,
    )
