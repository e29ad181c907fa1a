"""PassConfig: how the passes of a run are shaped, and what follows from it for planning and caches."""

from dataclasses import dataclass

from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.plan_types import EAGER, PlanShape, PlanSpec
from specdec.checks import flag, integer, positive_int
from specdec.errors import CapacityError


@dataclass(frozen=True, kw_only=True, slots=True)
class PassConfig:
    """How passes are shaped.

    max_context      positions of the longest request, in tokens
    batch_invariant  every product on exactly ``fixed_rows`` rows and attention over constant widths, so that the
                     result of a row does not depend, bit for bit, on what else is in the pass
    fixed_rows       rows of every pass under ``batch_invariant``; longer passes are refused
    query_block      most queries of a prompt chunk that are attended at once
    few_rows         longest pass that takes the fused path of ``few_rows`` (float32 on the CPU); 0: never
    kernels          every pass is a packed pass of these operators; None: passes are planned on the host and run by
                     the modules themselves, which is the fast way on a CPU
    """

    max_context: int
    batch_invariant: bool = False
    fixed_rows: int = 8
    query_block: int = 128
    few_rows: int = 128
    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        positive_int("max_context", self.max_context, where="engine.max_context")
        flag("batch_invariant", self.batch_invariant, where="engine.batch_invariant")
        positive_int("fixed_rows", self.fixed_rows, where="engine.fixed_rows")
        positive_int("query_block", self.query_block)
        integer("few_rows", self.few_rows, low=0)

    def shape(self, num_tokens: int) -> PlanShape:
        """Plan shape of a pass. Raises CapacityError when it has more tokens than ``fixed_rows`` allow."""
        if not self.batch_invariant:
            return EAGER
        if num_tokens > self.fixed_rows:
            raise CapacityError(
                f"engine.batch_invariant computes every pass on engine.fixed_rows={self.fixed_rows} rows, "
                f"got {num_tokens} tokens"
            )
        return PlanShape(num_tokens=self.fixed_rows, per_token=True, constant_widths=True)


def plan_spec(config: DeepseekV4Config, layout: CacheLayout, passes: PassConfig) -> PlanSpec:
    """What planning must know of the layers of ``layout``."""
    return PlanSpec(
        groups={spec.group_id: spec for spec in layout.group_specs()},
        kinds=layout.compressing_kinds,
        window_tokens=layout.sliding_window,
        num_heads=config.num_attention_heads,
        index_topk=config.index_topk,
        max_context=passes.max_context,
        query_block=passes.query_block,
    )


def target_layout(config: DeepseekV4Config, *, cache_dtype: str, indexer_dtype: str) -> CacheLayout:
    """Cache layout of all layers of a checkpoint: the target's, then the NextN layer's."""
    return CacheLayout(
        compress_ratios=config.compress_ratios,
        sliding_window=config.sliding_window,
        head_dim=config.head_dim,
        rope_dim=config.qk_rope_head_dim,
        index_head_dim=config.index_head_dim,
        cache_dtype=cache_dtype,
        indexer_dtype=indexer_dtype,
    )
