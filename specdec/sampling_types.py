"""How tokens are drawn: what drafters and verifiers are given to draw with; re-exported by ``specdec.api``.

Dimension letters: ``specdec.api``, and S siblings, the nodes of a tree that follow one and the same token.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch


class Coupling(Enum):
    """How the random numbers of draft and target relate; declared by the verifier.

    GREEDY       no randomness: the draft is its argmax
    SHARED       the draft samples with the target's own position-keyed noise (gumbel verifier)
    INDEPENDENT  the draft samples from its own stream and reports its distribution (rejection verifier)
    """

    GREEDY = "greedy"
    SHARED = "shared"
    INDEPENDENT = "independent"


class SiblingDraws(Enum):
    """How the siblings of a tree were drawn from their reported laws; tokens that were not drawn report none.

    WITH_REPLACEMENT     independently of each other; equal ones may occur
    WITHOUT_REPLACEMENT  one after the other, each from what the ones before it left of its law
    """

    WITH_REPLACEMENT = "with_replacement"
    WITHOUT_REPLACEMENT = "without_replacement"


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Tokens drawn for one draft step and, when the draw was random, the distribution they came from.

    tokens_B  int64
    probs_BV  float32, the exact law of ``tokens_B``; None for a deterministic choice (a point mass)
    """

    tokens_B: torch.Tensor
    probs_BV: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Siblings:
    """Tokens drawn for one and the same position of each request.

    tokens_BS  int64, in the order in which they were drawn, or by descending weight
    num_B      int64, 1..S: leading ones that count; the law had no further token
    probs_BV   float32 law of one draw, before any was taken out; None for a deterministic choice (point masses)
    """

    tokens_BS: torch.Tensor
    num_B: torch.Tensor
    probs_BV: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeRows:
    """The rows of a verify pass with trees: row 0 of a request is its newest token, row i + 1 is node i.

    parent_row_BK  int64 row that each node follows
    depth_BN       int64 nodes on the way to each row, itself included; 0 for row 0
    on_path_BNK    whether node k is on the way to row n, itself included
    sibling_BK     int64 number of each node among its siblings, from 0
    is_node_BK     whether a node counts; the others have values that mean nothing
    """

    parent_row_BK: torch.Tensor
    depth_BN: torch.Tensor
    on_path_BNK: torch.Tensor
    sibling_BK: torch.Tensor
    is_node_BK: torch.Tensor


class SamplingView(Protocol):
    """Read-only view of how each request of the batch samples; B rows in batch order."""

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """Draft one token per request for absolute ``positions_B`` (int64) from raw draft logits.

        Applies the request's temperature and filters, then draws with the verifier's coupling;
        ``greedy=True`` takes the argmax (lowest id on ties) whatever the coupling.
        """

    def draw_siblings(
        self,
        logits_BV: torch.Tensor,
        positions_B: torch.Tensor,
        *,
        count: int,
        draws: SiblingDraws = SiblingDraws.WITHOUT_REPLACEMENT,
        greedy: bool = False,
    ) -> Siblings:
        """Draft up to ``count`` tokens per request that all follow the same token; the first is that of ``draw``.

        With the noise of the target's own choice, the likeliest choices under that noise; greedy, the most probable
        tokens; else draws as ``draws`` says, which the proposal then declares (``Proposal.sibling_draws``).
        """


class TargetSampling(SamplingView, Protocol):
    """What a verifier is given besides: each row of the target processed as plain decoding would process it.

    In every method row j of a request predicts position ``positions_B + j`` and follows the drafted tokens d1..dj
    of ``drafted_BK`` (int64; None for N = 1), which penalties count. Device operations only.
    """

    wants_logprobs: bool
    all_greedy: bool

    def adjust(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """float32 [B, N, V] logits after penalties and minimum length; NaN becomes -inf."""

    def law(self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor) -> torch.Tensor:
        """float32 [B, N, V] probabilities after temperature and filters; a point mass for a greedy request."""

    def choose(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """int64 [B, N]: the token that plain decoding draws at each row, by noise keyed on position alone."""

    def logprobs(
        self,
        logits_BNV: torch.Tensor,
        drafted_BK: torch.Tensor | None,
        positions_B: torch.Tensor,
        tokens_BN: torch.Tensor,
    ) -> torch.Tensor:
        """float32 [B, N] log-probabilities of ``tokens_BN`` under ``law`` (greedy requests: at temperature 1)."""

    def acceptance_uniforms(self, positions_B: torch.Tensor, width: int) -> torch.Tensor:
        """float64 [B, width] in (0, 1): entry j decides the drafted token at position ``positions_B + j``."""

    def final_draw(
        self, weights_BV: torch.Tensor, positions_B: torch.Tensor, is_residual_B: torch.Tensor
    ) -> torch.Tensor:
        """int64 [B] tokens drawn from unnormalised weights; corrections and bonuses have noise of their own."""

    def along(self, tree: TreeRows) -> "TargetSampling":
        """The same for the rows of a tree.

        There row n of a request predicts position ``positions_B + depth_BN[n]`` and follows the nodes on its path
        alone; ``acceptance_uniforms`` has an entry for each node, by its position and number among its siblings.
        """
