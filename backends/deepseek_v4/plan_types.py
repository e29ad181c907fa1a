"""ForwardPlan: the index tensors of one forward pass, as frozen values; how they are made is in ``plan.py``.

Eager passes, padded fixed-shape passes and graph buffers hold the same types and differ only in their
``PlanShape``.

Dimension letters beside those of ``specdec.api``: G groups of a segment, M consecutive queries of a group,
Q = M * heads rows of its score matrix, W sliding window, K keys, C compressed rows, X compression boundaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from specdec.cache.spec import CacheGroupSpec
from specdec.layout import ForwardMode

# A padded token sits before the first position: it sees nothing, and all its slots are "do not write".
PAD_POSITION = -1


class Reach(Enum):
    """How a segment's queries meet the compressed rows of a kind.

    ALL     every visible row is attended (HCA, or CSA with no more visible rows than the top-k)
    GATHER  the selected rows of each query are gathered (few queries)
    MASK    all rows are gathered once and the unselected ones are masked (many queries)
    """

    ALL = "all"
    GATHER = "gather"
    MASK = "mask"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSpec:
    """What planning must know of a model; made once.

    groups         cache groups by id
    kinds          attention kinds with compressed rows that occur, ascending by ratio
    window_tokens  W, counting the current token
    num_heads      attention heads
    index_topk     rows that a CSA query attends; 0 without CSA
    max_context    positions of the longest request
    query_block    most queries of a prompt chunk that are attended at once
    gather_limit   most queries of a group for which selected rows are gathered one by one
    """

    groups: Mapping[str, CacheGroupSpec]
    kinds: tuple[AttentionKind, ...]
    window_tokens: int
    num_heads: int
    index_topk: int
    max_context: int
    query_block: int = 128
    gather_limit: int = 16

    def rows_per_page(self, group_id: str) -> int:
        return self.groups[group_id].rows_per_page


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanShape:
    """How far a plan's shapes may follow its contents.

    num_reqs         requests after padding; 0: as many as the layout has (decode only)
    num_tokens       packed tokens after padding; 0: as many as the requests have
    per_token        every token is a group of its own, so that its row shares no product with another row
    constant_widths  the number of compressed rows comes from the context limit
    all_boundaries   every token is treated as if it closed a compressed row, so that their number is constant

    The default follows the contents exactly: an eager pass.
    """

    num_reqs: int = 0
    num_tokens: int = 0
    per_token: bool = False
    constant_widths: bool = False
    all_boundaries: bool = False


EAGER = PlanShape()


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """The tokens of a pass that close a compressed row of one kind.

    tokens_X        packed index of each, or None: all tokens of the pass
    positions_X     their positions (padding: -1)
    window_slots_XW state rows of the window that ends there, in position order; 0 where there is none
    window_valid_XW whether the window's position exists
    index_slots_XW  the same window in the indexer's state group (CSA only)
    index_valid_XW  its validity (CSA only)
    write_slots_X   where the compressed row goes; -1 for a token that closes none
    """

    tokens_X: torch.Tensor | None
    positions_X: torch.Tensor
    window_slots_XW: torch.Tensor
    window_valid_XW: torch.Tensor
    index_slots_XW: torch.Tensor | None
    index_valid_XW: torch.Tensor | None
    write_slots_X: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedView:
    """Compressed rows of one kind as a segment sees them.

    reach           how they are attended
    slots_GC        rows of each group's request in order; 0 where there is no page
    visible_GMC     whether query m may see row c (GATHER and MASK, to score them)
    select_k        rows that a query selects (GATHER and MASK)
    bias_GQK        added to the scores: window columns, then all rows (ALL), then selected rows (GATHER);
                    None for MASK, where it depends on the selection
    """

    reach: Reach
    slots_GC: torch.Tensor
    visible_GMC: torch.Tensor | None
    select_k: int
    bias_GQK: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Consecutive packed tokens that are attended together: G groups of M consecutive positions each.

    first, last      token range [first, last)
    is_prefill       whether the tokens belong to prompt chunks
    window_slots_GK  sliding-window rows, position order, K = W - 1 + M; 0 where there is none
    window_bias_GQK  0 where query and row may meet, -inf elsewhere; Q is 1 if M is 1
    compressed       view of each kind that has a visible row
    """

    first: int
    last: int
    num_groups: int
    width: int
    is_prefill: bool
    window_slots_GK: torch.Tensor
    window_bias_GQK: torch.Tensor
    compressed: Mapping[AttentionKind, CompressedView]

    @property
    def selects(self) -> bool:
        """Whether the queries see more compressed rows than a CSA query attends, so that some are selected."""
        view = self.compressed.get(AttentionKind.CSA)
        return view is not None and view.reach is not Reach.ALL


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPlan:
    """All index tensors of a pass.

    mode                what the pass holds
    num_reqs            requests including padding
    num_tokens          packed tokens including padding
    num_prefill_reqs    leading requests that are prompt chunks
    num_prefill_tokens  their tokens
    positions_T         int64; padding has 0
    valid_T             False for padding; None when there is none
    write_slots         group id -> int64 [T] slot of each token in the groups of one row per token; -1: do not write
    boundaries          kind -> tokens that close a compressed row; a kind without one is absent
    segments            attention work, covering the tokens in order
    """

    mode: ForwardMode
    num_reqs: int
    num_tokens: int
    num_prefill_reqs: int
    num_prefill_tokens: int
    positions_T: torch.Tensor
    valid_T: torch.Tensor | None
    write_slots: Mapping[str, torch.Tensor]
    boundaries: Mapping[AttentionKind, Boundaries]
    segments: tuple[Segment, ...]
