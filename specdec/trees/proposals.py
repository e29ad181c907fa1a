"""Trees on their way through a round: proposals in packed order, and what a pass leaves when one path is kept."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specdec.api import ROOT, Proposal, RoundLayout
from specdec.errors import MetadataError
from specdec.trees.draft_tree import DraftTree


def ordered_trees(proposal: Proposal, limits: Sequence[int]) -> tuple[Proposal, tuple[DraftTree | None, ...]]:
    """A proposal whose parents come before their children, and the tree of each request; None for chains.

    limits  most nodes of each request, 0 for one that wants none: what is proposed for it is not looked at

    Raises MetadataError for parents that form no tree, and for laws of siblings that do not say how they were drawn.
    """
    assert proposal.parents_BK is not None, "a tree has parents"
    if proposal.parents_BK.shape != proposal.tokens_BK.shape:
        raise MetadataError(
            f"parents_BK must have the shape of tokens_BK {tuple(proposal.tokens_BK.shape)}, got "
            f"{tuple(proposal.parents_BK.shape)}"
        )
    if proposal.probs_BKV is not None and proposal.sibling_draws is None:
        raise MetadataError("a tree with laws (probs_BKV) must say how its siblings were drawn (sibling_draws)")
    counts, lines = proposal.num_drafted_B.tolist(), proposal.parents_BK.tolist()
    wanted = [min(count, len(line)) if limit else 0 for count, line, limit in zip(counts, lines, limits, strict=True)]
    trees = [DraftTree(tuple(line[:count])) for line, count in zip(lines, wanted, strict=True)]
    if not all(tree.is_ordered for tree in trees):
        proposal = _reordered(proposal, trees)
        trees = [tree.ordered() for tree in trees]
    return proposal, tuple(None if tree.is_chain else tree for tree in trees)


def _reordered(proposal: Proposal, trees: Sequence[DraftTree]) -> Proposal:
    num_nodes, device = proposal.tokens_BK.shape[1], proposal.tokens_BK.device
    order, parents = [], []
    for tree in trees:
        rest = range(tree.num_nodes, num_nodes)
        order.append([*tree.order, *rest])
        parents.append([*tree.ordered().parents, *[ROOT] * len(rest)])
    order_BK = torch.tensor(order, dtype=torch.int64, device=device)
    probs_BKV = proposal.probs_BKV
    if probs_BKV is not None:
        probs_BKV = probs_BKV.gather(1, order_BK.unsqueeze(2).expand(-1, -1, probs_BKV.shape[2]))
    return replace(
        proposal,
        tokens_BK=proposal.tokens_BK.gather(1, order_BK),
        probs_BKV=probs_BKV,
        parents_BK=torch.tensor(parents, dtype=torch.int64, device=device),
    )


def kept_rows(layout: RoundLayout, paths: Sequence[Sequence[int]]) -> list[int]:
    """Packed tokens that are left when of every tree only its path is kept, in packed order.

    paths  [B] accepted nodes of each request with a tree; the others keep all their tokens
    """
    rows: list[int] = []
    for b, (first, length) in enumerate(zip(layout.query_starts, layout.query_lens, strict=False)):
        is_tree = bool(layout.trees) and layout.trees[b] is not None
        rows.extend([first, *(first + 1 + node for node in paths[b])] if is_tree else range(first, first + length))
    return rows


def kept_layout(layout: RoundLayout, paths: Sequence[Sequence[int]]) -> RoundLayout:
    """The pass as if of every tree only its path had been run; without logit rows."""
    lengths = [
        length if not layout.trees or layout.trees[b] is None else 1 + len(paths[b])
        for b, length in enumerate(layout.query_lens)
    ]
    return RoundLayout(
        rows=layout.rows,
        start_positions=layout.start_positions,
        query_lens=tuple(lengths),
        num_prefill_reqs=layout.num_prefill_reqs,
    )
