"""SiblingVerifier: judges trees by the rules of specdec.rules.siblings, and chains by the token ratio test.

The walk down the tree is ``walk_tree``, the code that the certificate judges; here its laws are tensors, its coins are
the request's own noise, and all families of siblings of a round are judged together before it starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec.api import ROOT, Proposal, SiblingDraws, TargetSampling, Verdict
from specdec.errors import MetadataError
from specdec.rules.siblings import (
    Deterministic,
    SiblingRule,
    WithoutReplacement,
    WithReplacement,
    children_of,
    judge_siblings,
    walk_tree,
)
from specdec.trees.matches import match_tree
from specdec.trees.rows import Path, tree_rows
from specdec.verifiers import RejectionVerifier

RULES: dict[SiblingDraws | None, SiblingRule] = {
    None: Deterministic(),
    SiblingDraws.WITH_REPLACEMENT: WithReplacement(),
    SiblingDraws.WITHOUT_REPLACEMENT: WithoutReplacement(),
}


def rule_of(proposal: Proposal) -> SiblingRule:
    """The rule that is exact for how siblings were drawn; raises MetadataError where a proposal does not say."""
    if proposal.probs_BKV is None:
        return RULES[None]
    if proposal.sibling_draws is None:
        raise MetadataError("a tree with laws (probs_BKV) must say how its siblings were drawn (sibling_draws)")
    return RULES[proposal.sibling_draws]


class SiblingVerifier(RejectionVerifier):
    """Siblings are tested one after the other, each against what the rejected ones before it left of the target.

    Exact in distribution for siblings drawn with or without replacement from the law that the draft reports, and for
    siblings that were chosen, such as a top-k. A node's coin is keyed by its position and number among its siblings.
    """

    name = "siblings"

    def judge_tree(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round of trees; see ``api.TreeVerifier.judge_tree``. Reads coins and trees on the host."""
        num_nodes, vocab_size = logits_BNV.shape[1] - 1, logits_BNV.shape[2]
        assert proposal.parents_BK is not None, "a tree has parents"
        tokens_BK = proposal.tokens_BK[:, :num_nodes].clamp(0, vocab_size - 1)
        tree = tree_rows(proposal.parents_BK[:, :num_nodes], proposal.num_drafted_B)
        view = sampling.along(tree)
        if sampling.all_greedy:
            # Point masses: every rule keeps the path that is the target's choice and no other.
            return match_tree(view.choose(logits_BNV, tokens_BK, positions_B), logits_BNV, proposal, view, positions_B)
        law_BNV = view.law(logits_BNV, tokens_BK, positions_B)
        coins_BK = view.acceptance_uniforms(positions_B, num_nodes)
        families = _Families(proposal, tokens_BK, law_BNV, coins_BK)
        walks = [families.walk(b) for b in range(len(tokens_BK))]
        path, is_residual_B = _path(walks, num_nodes, device=tokens_BK.device)
        weights_BV = torch.stack([walk.weights_V for walk in walks])
        final_B = sampling.final_draw(weights_BV, positions_B + path.num_B, is_residual_B)
        kept_BN = F.pad(tokens_BK.gather(1, path.nodes_BK), (0, 1))
        is_kept_BN = torch.arange(num_nodes + 1, device=final_B.device) < path.num_B.unsqueeze(1)
        tokens_BN = torch.where(is_kept_BN, kept_BN, final_B.unsqueeze(1))
        logprobs_BN = None
        if sampling.wants_logprobs:
            # What follows each row of the path, put at that row; other rows have any token.
            is_on_BN = torch.arange(num_nodes + 1, device=final_B.device) <= path.num_B.unsqueeze(1)
            rows_BN = torch.where(is_on_BN, path.rows_BN, num_nodes + 1)
            after_BN = F.pad(torch.zeros_like(tokens_BN), (0, 1)).scatter_(1, rows_BN, tokens_BN)[:, :-1]
            logprobs_BN = path.gather(view.logprobs(logits_BNV, tokens_BK, positions_B, after_BN))
        return Verdict(tokens_BN=tokens_BN, num_accepted_B=path.num_B, logprobs_BN=logprobs_BN, path_BK=path.nodes_BK)


@dataclass(frozen=True, slots=True)
class _Walk:
    """One request's way down: its nodes, the weights of the last token, and whether it follows a rejection."""

    nodes: Sequence[int]
    weights_V: torch.Tensor
    is_residual: bool


class _Families:
    """All siblings of a round, judged in as few calls as there are numbers of siblings."""

    def __init__(
        self, proposal: Proposal, tokens_BK: torch.Tensor, law_BNV: torch.Tensor, coins_BK: torch.Tensor
    ) -> None:
        assert proposal.parents_BK is not None, "a tree has parents"
        counts = proposal.num_drafted_B.tolist()
        lines = proposal.parents_BK.tolist()
        self._parents = [line[:count] for line, count in zip(lines, counts, strict=True)]
        self._law_BNV = law_BNV
        self._passed: dict[tuple[int, int], tuple[list[bool], torch.Tensor]] = {}
        by_size: dict[int, list[tuple[int, int, list[int]]]] = {}
        for b, parents in enumerate(self._parents):
            for node, children in children_of(parents).items():
                by_size.setdefault(len(children), []).append((b, node, children))
        for family in by_size.values():
            self._judge(family, rule_of(proposal), proposal.probs_BKV, tokens_BK, coins_BK)

    def walk(self, b: int) -> _Walk:
        """The way of request ``b``."""
        nodes, weights_V = walk_tree(
            self._parents[b],
            lambda node, children: self._passed[b, node],
            lambda node: self._law_BNV[b, node + 1],
            bool,
        )
        last = nodes[-1] if nodes else ROOT
        return _Walk(nodes, weights_V, is_residual=(b, last) in self._passed)

    def _judge(
        self,
        family: list[tuple[int, int, list[int]]],
        rule: SiblingRule,
        probs_BKV: torch.Tensor | None,
        tokens_BK: torch.Tensor,
        coins_BK: torch.Tensor,
    ) -> None:
        device = tokens_BK.device
        request_X1 = torch.tensor([[b] for b, _, _ in family], device=device)
        row_X1 = torch.tensor([[node + 1] for _, node, _ in family], device=device)
        children_XS = torch.tensor([children for _, _, children in family], device=device)
        target_XV = self._law_BNV[request_X1, row_X1].squeeze(1)
        draft_XSV = None if probs_BKV is None else probs_BKV[request_X1, children_XS]
        chances_XS, left_XV = judge_siblings(rule, target_XV, draft_XSV, tokens_BK[request_X1, children_XS])
        passed_XS = (coins_BK[request_X1, children_XS] < chances_XS).tolist()
        for (b, node, _), passed, left_V in zip(family, passed_XS, left_XV, strict=True):
            self._passed[b, node] = passed, left_V


def _path(walks: Sequence[_Walk], num_nodes: int, *, device: torch.device) -> tuple[Path, torch.Tensor]:
    padded = [[*walk.nodes, *[0] * (num_nodes - len(walk.nodes))] for walk in walks]
    path = Path(
        nodes_BK=torch.tensor(padded, dtype=torch.int64, device=device),
        num_B=torch.tensor([len(walk.nodes) for walk in walks], dtype=torch.int64, device=device),
    )
    return path, torch.tensor([walk.is_residual for walk in walks], device=device)


@dataclass(frozen=True, kw_only=True, slots=True)
class SiblingVerifierConfig:
    """Verification of trees of sampled or chosen siblings."""

    def build(self) -> SiblingVerifier:
        """Make the verifier."""
        return SiblingVerifier()
