"""The verdict on trees of a verifier whose output is the target's own choice: the longest path that matches it."""

import torch

from specdec.api import Proposal, TargetSampling, TreeRows, Verdict
from specdec.trees.rows import matching_path, tree_rows


def rows_of(proposal: Proposal, width: int) -> TreeRows:
    """The rows of a pass of ``width`` rows per request."""
    assert proposal.parents_BK is not None, "a tree has parents"
    return tree_rows(proposal.parents_BK[:, : width - 1], proposal.num_drafted_B)


def match_tree(
    choice_BN: torch.Tensor,
    logits_BNV: torch.Tensor,
    proposal: Proposal,
    view: TargetSampling,
    positions_B: torch.Tensor,
) -> Verdict:
    """Keep the longest path of drafted tokens that are the target's choice at the row before them.

    choice_BN  the target's choice at each row
    view       sampling along the tree
    """
    drafted_BK = proposal.tokens_BK[:, : choice_BN.shape[1] - 1]
    path = matching_path(rows_of(proposal, choice_BN.shape[1]), drafted_BK, choice_BN)
    logprobs_BN = None
    if view.wants_logprobs:
        logprobs_BN = path.gather(view.logprobs(logits_BNV, drafted_BK, positions_B, choice_BN))
    return Verdict(
        tokens_BN=path.gather(choice_BN), num_accepted_B=path.num_B, logprobs_BN=logprobs_BN, path_BK=path.nodes_BK
    )
