"""Judges the trees that a drafter proposes: its own draws, its own reports, and the rule that its report calls for."""

from collections.abc import Callable
from dataclasses import dataclass

from specdec.certify.chain import ChainGame
from specdec.certify.chance import Chance
from specdec.certify.drafts import DraftedChain
from specdec.certify.tree import Walk
from specdec.rules.siblings import judge_siblings
from specdec.sibling_verifier import RULES


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposedTreeGame(ChainGame):
    """Decoding with a drafter of trees; ``rule`` judges the chains among them.

    most_nodes  nodes of a tree, which may reach beyond the tokens whose law is compared
    """

    most_nodes: int = 4

    def _limit(self, prefix: tuple[int, ...]) -> int:
        return self.most_nodes

    def _play(self, known: tuple[int, ...], draft: DraftedChain) -> Callable[[Chance], tuple[tuple[int, ...], int]]:
        if draft.parents is None:
            return ChainGame._play(self, known, draft)
        laws = draft.laws
        walk = Walk(
            target=self.target,
            rule=RULES[draft.draws if laws is not None else None],
            judge=judge_siblings,
            parents=draft.parents,
            known=known,
            tokens=dict(enumerate(draft.tokens)),
            law_of=None if laws is None else lambda node, _: laws[node],
        )
        return walk.play
