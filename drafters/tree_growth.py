"""Dynamic draft trees: grow level by level along the likeliest paths, then keep the best nodes of all.

Every node of a level's frontier proposes its likeliest followers; the ``width`` of them with the highest cumulative
draft probability are the next frontier; at the end the nodes with the highest cumulative probability stay, which always
hold their ancestors. The choice looks at the draft's law alone and tokens are chosen, not drawn, so siblings are point
masses to every rule. Under the target's own noise they are the likeliest choices under that noise.
Source: Li et al., EAGLE-2 (2024), arXiv:2406.16858, section 4.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from specdec.api import ROOT, DraftBackend, DraftInput, Proposal

NEVER = float("-inf")


@runtime_checkable
class GrowsTrees(DraftBackend, Protocol):
    """A draft model that can follow several drafts side by side."""

    def forward_level(
        self, seq_lens_B: torch.Tensor, tokens_BM: torch.Tensor, parents_BM: torch.Tensor
    ) -> torch.Tensor:
        """Feed M nodes per request, one level below those before; logits float32 [B, M, V] of what follows each.

        seq_lens_B  committed positions
        parents_BM  int64 number of each node's parent among the nodes fed since ``begin_draft``, ROOT for none
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """How a tree grows.

    width      followers of a node, and nodes of a level that are followed further
    depth      levels
    max_nodes  nodes that are kept
    greedy     whether followers are the most probable ones whatever the coupling
    """

    width: int
    depth: int
    max_nodes: int
    greedy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Nodes of a level or of all levels, [B, C].

    tokens   int64
    parents  int64 index among the candidates of all levels, ROOT for none
    scores   float32 cumulative log-probability; -inf for a place without a node
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    scores: torch.Tensor


def grow(backend: GrowsTrees, inputs: DraftInput, logits_BV: torch.Tensor, growth: Growth) -> Proposal:
    """A tree per request from the logits of the newest committed rows; requests that want none have no node."""
    num_reqs, device = len(logits_BV), logits_BV.device
    limits_B = inputs.limits_B.clamp(max=growth.max_nodes)
    levels: list[Candidates] = []
    logits_BMV, frontier_BM = logits_BV[:, None], torch.full((num_reqs, 1), ROOT, device=device)
    scores_BM = torch.zeros(num_reqs, 1, device=device)
    # Number of each fed node among the fed ones, by its index among all candidates.
    fed = 0
    fed_number_BC = torch.empty(num_reqs, 0, dtype=torch.int64, device=device)
    for level in range(1, growth.depth + 1):
        found = _followers(inputs, logits_BMV, frontier_BM, scores_BM, level, growth)
        first = sum(candidates.tokens.shape[1] for candidates in levels)
        levels.append(found)
        if level == growth.depth:
            break
        best_BM = found.scores.sort(dim=1, descending=True, stable=True).indices[:, : growth.width]
        tokens_BM, parents_BM = found.tokens.gather(1, best_BM), found.parents.gather(1, best_BM)
        known = parents_BM.clamp(min=0)
        parent_numbers = ROOT * torch.ones_like(known) if first == 0 else fed_number_BC.gather(1, known)
        numbers_BC = torch.full_like(found.tokens, ROOT)
        numbers_BC.scatter_(1, best_BM, fed + torch.arange(best_BM.shape[1], device=device).expand_as(best_BM))
        fed_number_BC = torch.cat((fed_number_BC, numbers_BC), dim=1)
        fed += best_BM.shape[1]
        logits_BMV = backend.forward_level(inputs.seq_lens_B, tokens_BM, parent_numbers)
        frontier_BM, scores_BM = first + best_BM, found.scores.gather(1, best_BM)
    return _kept(_joined(levels), limits_B)


def _followers(
    inputs: DraftInput,
    logits_BMV: torch.Tensor,
    frontier_BM: torch.Tensor,
    scores_BM: torch.Tensor,
    level: int,
    growth: Growth,
) -> Candidates:
    """The likeliest followers of every frontier node, ``width`` each."""
    positions_B = inputs.seq_lens_B + level
    logprobs_BMV = logits_BMV.log_softmax(dim=-1)
    greedy, parts = growth.greedy, []
    for m in range(logits_BMV.shape[1]):
        drawn = inputs.sampling.draw_siblings(logits_BMV[:, m], positions_B, count=growth.width, greedy=greedy)
        if drawn.probs_BV is not None:
            # Sampled siblings may not be chosen among afterwards: their rule would no longer be exact.
            greedy = True
            drawn = inputs.sampling.draw_siblings(logits_BMV[:, m], positions_B, count=growth.width, greedy=True)
        scores_BS = scores_BM[:, m, None] + logprobs_BMV[:, m].gather(1, drawn.tokens_BS)
        counts_BS = torch.arange(scores_BS.shape[1], device=scores_BS.device) < drawn.num_B[:, None]
        parents_BS = frontier_BM[:, m, None].expand_as(drawn.tokens_BS)
        parts.append(
            Candidates(tokens=drawn.tokens_BS, parents=parents_BS, scores=scores_BS.masked_fill(~counts_BS, NEVER))
        )
    return _joined(parts)


def _joined(parts: list[Candidates]) -> Candidates:
    return Candidates(
        tokens=torch.cat([part.tokens for part in parts], dim=1),
        parents=torch.cat([part.parents for part in parts], dim=1),
        scores=torch.cat([part.scores for part in parts], dim=1),
    )


def _kept(all_nodes: Candidates, limits_B: torch.Tensor) -> Proposal:
    """The best nodes of each request in the order in which they grew, parents renumbered."""
    order_BC = all_nodes.scores.sort(dim=1, descending=True, stable=True).indices
    rank_BC = torch.empty_like(order_BC).scatter_(
        1, order_BC, torch.arange(order_BC.shape[1], device=order_BC.device).expand_as(order_BC)
    )
    is_kept_BC = (rank_BC < limits_B[:, None]) & (all_nodes.scores > NEVER)
    kept = kept_nodes(is_kept_BC, all_nodes.parents)
    return Proposal(
        tokens_BK=all_nodes.tokens.gather(1, kept.index_BK), num_drafted_B=kept.num_B, parents_BK=kept.parents_BK
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptNodes:
    """Nodes that stay, packed to the left.

    index_BK    int64 index of each among the candidates
    parents_BK  int64 index of its parent among those that stay, ROOT for none
    num_B       int64 how many there are
    """

    index_BK: torch.Tensor
    parents_BK: torch.Tensor
    num_B: torch.Tensor


def kept_nodes(is_kept_BC: torch.Tensor, parents_BC: torch.Tensor) -> KeptNodes:
    """The candidates that are kept, in their order, with renumbered parents; reads their number on the host.

    parents_BC  int64 index among the candidates, ROOT for none; the parent of a kept node is kept, too
    """
    number_BC = is_kept_BC.cumsum(dim=1) - 1
    num_B = is_kept_BC.sum(dim=1)
    width = max(int(num_B.max()), 1)
    index_BK = is_kept_BC.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :width]
    parents_BK = parents_BC.gather(1, index_BK)
    is_node_BK = torch.arange(width, device=num_B.device) < num_B[:, None]
    renumbered_BK = number_BC.gather(1, parents_BK.clamp(min=0))
    return KeptNodes(
        index_BK=index_BK,
        parents_BK=torch.where((parents_BK == ROOT) | ~is_node_BK, ROOT, renumbered_BK),
        num_B=num_B,
    )
