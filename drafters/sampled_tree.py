"""Trees of sampled siblings: each followed node draws its followers from the draft's law, and all that is drawn stays.

Which nodes are followed further may depend on what was drawn before, never on what their own followers turn out to be,
and nothing is dropped after a look at it; so the rules for siblings that were drawn are exact. Sources: Miao et al.,
SpecInfer (2023), arXiv:2305.09781; Jeon et al., recursive speculative decoding (2024), arXiv:2402.14160.
"""

from dataclasses import dataclass

import torch

from drafters.tree_growth import NEVER, GrowsTrees, kept_nodes
from specdec.api import ROOT, DraftInput, Proposal, SiblingDraws


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledShape:
    """How a tree is drawn.

    width      siblings that follow a node, and nodes of a level that are followed further, the likeliest ones
    depth      levels
    max_nodes  nodes; the tree ends in the order in which they are drawn
    draws      with or without replacement
    """

    width: int
    depth: int
    max_nodes: int
    draws: SiblingDraws


@dataclass(frozen=True, slots=True)
class _Level:
    """Nodes of one level [B, C] with their parents among all nodes, scores (NEVER: no node), and laws [B, C, V]."""

    tokens_BC: torch.Tensor
    parents_BC: torch.Tensor
    scores_BC: torch.Tensor
    probs_BCV: torch.Tensor | None


def draw_tree(backend: GrowsTrees, inputs: DraftInput, logits_BV: torch.Tensor, shape: SampledShape) -> Proposal:
    """A tree per request from the logits of the newest committed rows; requests that want none have no node.

    Under the target's own noise, and for greedy requests, siblings are the likeliest choices and no laws are reported.
    """
    num_reqs, device = len(logits_BV), logits_BV.device
    logits_BMV = logits_BV[:, None]
    parents_BM = torch.full((num_reqs, 1), ROOT, device=device)
    scores_BM = torch.zeros(num_reqs, 1, device=device)
    levels: list[_Level] = []
    num_nodes, fed, fed_BM = 0, 0, parents_BM
    for level in range(1, shape.depth + 1):
        drawn = _drawn(inputs, logits_BMV, parents_BM, scores_BM, level, shape)
        levels.append(drawn)
        if level == shape.depth or num_nodes + drawn.tokens_BC.shape[1] >= shape.max_nodes:
            break
        best_BM = drawn.scores_BC.sort(dim=1, descending=True, stable=True).indices[:, : shape.width]
        # Followed nodes are numbered as they are fed; siblings of one level share their fed parent.
        column_BM = best_BM // shape.width
        fed_BM = fed_BM.gather(1, column_BM)
        logits_BMV = backend.forward_level(inputs.seq_lens_B, drawn.tokens_BC.gather(1, best_BM), fed_BM)
        fed_BM = fed + torch.arange(best_BM.shape[1], device=device).expand_as(best_BM)
        fed += best_BM.shape[1]
        parents_BM, scores_BM = num_nodes + best_BM, drawn.scores_BC.gather(1, best_BM)
        num_nodes += drawn.tokens_BC.shape[1]
    return _packed(levels, inputs.limits_B.clamp(max=shape.max_nodes), shape.draws)


def _drawn(
    inputs: DraftInput,
    logits_BMV: torch.Tensor,
    parents_BM: torch.Tensor,
    scores_BM: torch.Tensor,
    level: int,
    shape: SampledShape,
) -> _Level:
    """Followers of every followed node, side by side; each takes ``width`` places."""
    tokens, scores, laws = [], [], []
    logprobs_BMV = logits_BMV.log_softmax(dim=-1)
    for m in range(logits_BMV.shape[1]):
        found = inputs.sampling.draw_siblings(
            logits_BMV[:, m], inputs.seq_lens_B + level, count=shape.width, draws=shape.draws
        )
        missing = shape.width - found.tokens_BS.shape[1]
        tokens_BS = torch.nn.functional.pad(found.tokens_BS, (0, missing))
        own_BS = scores_BM[:, m, None] + logprobs_BMV[:, m].gather(1, tokens_BS)
        is_node_BS = torch.arange(shape.width, device=own_BS.device) < found.num_B[:, None]
        tokens.append(tokens_BS)
        scores.append(torch.where(is_node_BS & (scores_BM[:, m, None] > NEVER), own_BS, NEVER))
        if found.probs_BV is not None:
            laws.append(found.probs_BV[:, None].expand(-1, shape.width, -1))
    return _Level(
        torch.cat(tokens, dim=1),
        parents_BM.repeat_interleave(shape.width, dim=1),
        torch.cat(scores, dim=1),
        torch.cat(laws, dim=1) if laws else None,
    )


def _packed(levels: list[_Level], limits_B: torch.Tensor, draws: SiblingDraws) -> Proposal:
    """The first nodes of each request in the order in which they were drawn, parents renumbered."""
    tokens_BC = torch.cat([level.tokens_BC for level in levels], dim=1)
    parents_BC = torch.cat([level.parents_BC for level in levels], dim=1)
    exists_BC = torch.cat([level.scores_BC for level in levels], dim=1) > NEVER
    kept = kept_nodes(exists_BC & (exists_BC.cumsum(dim=1) <= limits_B[:, None]), parents_BC)
    laws = [level.probs_BCV for level in levels if level.probs_BCV is not None]
    probs_BKV = None
    if laws:
        all_BCV = torch.cat(laws, dim=1)
        probs_BKV = all_BCV.gather(1, kept.index_BK[..., None].expand(-1, -1, all_BCV.shape[2]))
    return Proposal(
        tokens_BK=tokens_BC.gather(1, kept.index_BK),
        num_drafted_B=kept.num_B,
        probs_BKV=probs_BKV,
        parents_BK=kept.parents_BK,
        sibling_draws=draws if laws else None,
    )
