"""What the drafters of this package share: limits of drafts and trees, and proposals made from draws or host lists."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from specdec.api import ROOT, Draft, DraftInput, Proposal
from specdec.checks import integer

MAX_DRAFT_TOKENS = 31
MAX_TREE_WIDTH = 16


def check_num_draft_tokens(value: object) -> int:
    """An integer from 1 to 31; raises ConfigError that names ``drafter.num_draft_tokens`` otherwise."""
    return integer("num_draft_tokens", value, low=1, high=MAX_DRAFT_TOKENS, where="drafter.num_draft_tokens")


def check_tree(width: object, depth: object) -> None:
    """Raise ConfigError for a shape of trees that is out of range."""
    integer("tree_width", width, low=0, high=MAX_TREE_WIDTH, where="drafter.tree_width")
    integer("tree_depth", depth, low=1, high=MAX_DRAFT_TOKENS, where="drafter.tree_depth")


def own_limits(inputs: DraftInput) -> tuple[int, ...]:
    """Most tokens for each request; 0 for one that wants nothing."""
    return tuple(limit if wanted else 0 for wanted, limit in zip(inputs.wanted_B, inputs.max_draft_B, strict=True))


def drawn_proposal(drafts: Sequence[Draft], num_drafted_B: torch.Tensor) -> Proposal:
    """One chain per request from the draws of consecutive draft steps, with their laws where the view reports them."""
    laws = [draft.probs_BV for draft in drafts if draft.probs_BV is not None]
    assert len(laws) in (0, len(drafts)), "a sampling view reports the law of all its draws or of none"
    return Proposal(
        tokens_BK=torch.stack([draft.tokens_B for draft in drafts], dim=1),
        num_drafted_B=num_drafted_B,
        probs_BKV=torch.stack(laws, dim=1) if laws else None,
    )


def proposal_of(drafts: Sequence[Sequence[int]], device: torch.device) -> Proposal | None:
    """Pad one ragged draft per request into a Proposal of point masses; None when all are empty."""
    width = max(map(len, drafts), default=0)
    if width == 0:
        return None
    padded = [[*draft, *([0] * (width - len(draft)))] for draft in drafts]
    return Proposal(
        tokens_BK=torch.tensor(padded, dtype=torch.int64, device=device),
        num_drafted_B=torch.tensor([len(draft) for draft in drafts], dtype=torch.int64, device=device),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTree:
    """Drafted tokens of one request and the parent of each, parents before their children; -1 for the root."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


def merged(chains: Sequence[Sequence[int]], limit: int) -> TokenTree:
    """Chains as one tree of at most ``limit`` nodes: common beginnings once, earlier chains and short depths first."""
    nodes: dict[tuple[int, int], int] = {}
    ends = [ROOT] * len(chains)
    for depth in range(max(map(len, chains), default=0)):
        for c, chain in enumerate(chains):
            if depth >= len(chain):
                continue
            key = (ends[c], chain[depth])
            if key in nodes or len(nodes) < limit:
                ends[c] = nodes.setdefault(key, len(nodes))
    return TokenTree(tokens=tuple(token for _, token in nodes), parents=tuple(parent for parent, _ in nodes))


def tree_proposal_of(trees: Sequence[TokenTree], device: torch.device) -> Proposal | None:
    """Pad one tree per request into a Proposal of point masses; None when all are empty."""
    proposal = proposal_of([tree.tokens for tree in trees], device)
    if proposal is None:
        return None
    width = proposal.tokens_BK.shape[1]
    padded = [[*tree.parents, *([ROOT] * (width - len(tree.parents)))] for tree in trees]
    return replace(proposal, parents_BK=torch.tensor(padded, dtype=torch.int64, device=device))
