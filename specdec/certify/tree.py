"""Judges sibling rules over trees of drafted tokens: every draw of the tree, every walk down it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from specdec.certify.chain import ROOT, exact_array
from specdec.certify.chance import Chance, Number, every_run
from specdec.certify.findings import Finding, smallest_counterexample
from specdec.certify.tables import Law, Table
from specdec.rules import siblings
from specdec.rules.siblings import Deterministic, SiblingRule, WithoutReplacement, WithReplacement

Draw = Callable[[Chance, Law, int], list[int]]
JudgeSiblings = Callable[..., tuple[np.ndarray, np.ndarray]]

# Parents of each node; the order of nodes is free, so a child may come before its parent.
CHAIN = (-1, 0)
TWO_SIBLINGS = (-1, -1)
THREE_SIBLINGS = (-1, -1, -1)
BUSHY = (2, 2, -1, -1)


def draw_with_replacement(chance: Chance, law: Law, count: int) -> list[int]:
    """Independent draws."""
    return [chance.choose(law) for _ in range(count)]


def draw_without_replacement(chance: Chance, law: Law, count: int) -> list[int]:
    """Draws from what the draws before have left; fewer if nothing is left."""
    left, found = list(law), []
    while len(found) < count and sum(left) > 0:
        found.append(chance.choose(left))
        left[found[-1]] = 0
    return found


def take_best(chance: Chance, law: Law, count: int) -> list[int]:
    """The most probable tokens, the lowest id on ties; nothing is drawn."""
    return sorted(range(len(law)), key=lambda i: -law[i])[:count]


def given(*tokens: int) -> Draw:
    """The same siblings everywhere."""
    return lambda chance, law, count: list(tokens[:count])


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeGame:
    """Decoding of ``num_tokens`` tokens after ``root``, a tree of drafted tokens in every round.

    parents  shape of the tree, see ``siblings.walk_tree``
    draw     how the siblings at one position are drawn from the draft's law
    rule     how they are judged
    judge    the recursion over siblings; another one is a wrong rule
    """

    target: Table
    draft: Table
    parents: tuple[int, ...]
    draw: Draw
    rule: SiblingRule
    judge: JudgeSiblings = siblings.judge_siblings
    num_tokens: int = 3
    root: tuple[int, ...] = ROOT

    def joint(self) -> tuple[dict[tuple[int, ...], Number], int]:
        """Probability of every output, and the number of outcomes that were enumerated."""
        open_by_length: list[dict[tuple[int, ...], Number]] = [defaultdict(Fraction) for _ in range(self.num_tokens)]
        open_by_length[0][()] = Fraction(1)
        joint: dict[tuple[int, ...], Number] = defaultdict(Fraction)
        num_cases = 0
        for waiting in open_by_length:
            for prefix, weight in waiting.items():
                for chance, emitted in self._round(self.root + prefix):
                    num_cases += 1
                    longer = (prefix + emitted)[: self.num_tokens]
                    place = joint if len(longer) == self.num_tokens else open_by_length[len(longer)]
                    place[longer] += weight * chance
        assert abs(sum(joint.values()) - 1) < 1e-9, "probabilities sum to 1"
        return joint, num_cases

    def expected_accepted(self) -> Number:
        """Mean number of accepted drafted tokens of the first round."""
        return sum(chance * (len(emitted) - 1) for chance, emitted in self._round(self.root))

    def finding(self, subject: str, setting: str) -> Finding:
        """The joint law against the target's."""
        joint, num_cases = self.joint()
        return Finding(
            subject=subject,
            setting=f"{setting}, {self.num_tokens} tokens",
            num_cases=num_cases,
            counterexample=smallest_counterexample(joint, self.target, self.root, self.num_tokens),
        )

    def _round(self, known: tuple[int, ...]) -> Iterator[tuple[Number, tuple[int, ...]]]:
        """(probability, emitted tokens) of every outcome of a round."""
        for draw_weight, tokens in every_run(lambda chance: self._draw_tree(chance, known)):
            walk = Walk(
                target=self.target,
                rule=self.rule,
                judge=self.judge,
                parents=self.parents,
                known=known,
                tokens=tokens,
                law_of=None if isinstance(self.rule, Deterministic) else lambda node, path: self.draft.law(path),
            )
            for weight, (emitted, _) in every_run(walk.play):
                yield draw_weight * weight, emitted

    def _draw_tree(self, chance: Chance, known: tuple[int, ...]) -> dict[int, int]:
        """Token of every node that could be drawn, parents before their children."""
        children, tokens = siblings.children_of(self.parents), {}
        waiting = [(siblings.ROOT, known)]
        while waiting:
            node, path = waiting.pop()
            below = children.get(node, [])
            drawn = self.draw(chance, self.draft.law(path), len(below))
            for child, token in zip(below, drawn, strict=False):
                tokens[child] = token
                waiting.append((child, (*path, token)))
        return tokens


class Walk:
    """The walks down one drawn tree.

    parents, tokens  the tree; a node without a token could not be drawn
    law_of           (node, tokens before it) -> law of one draw of the node; None for siblings that were not drawn
    """

    def __init__(
        self,
        *,
        target: Table,
        rule: SiblingRule,
        judge: JudgeSiblings,
        parents: Sequence[int],
        known: tuple[int, ...],
        tokens: Mapping[int, int],
        law_of: Callable[[int, tuple[int, ...]], Law] | None,
    ) -> None:
        self._target, self._rule, self._judge_siblings = target, rule, judge
        self._parents, self._tokens, self._law_of = parents, tokens, law_of
        self._paths = {siblings.ROOT: known}
        self._judged: dict[int, tuple[list[Number], Law]] = {}

    def play(self, chance: Chance) -> tuple[tuple[int, ...], int]:
        """Emitted tokens, accepted ones and one more, and how many are accepted."""
        accepted, weights = self.walk(chance.toss)
        return (*(self._tokens[node] for node in accepted), chance.choose(weights)), len(accepted)

    def walk(self, accepts: Callable[[object], bool]) -> tuple[list[int], Law]:
        """Accepted nodes and the weights of the token after them."""
        return siblings.walk_tree(self._parents, self.judge, lambda node: self._target.law(self._path(node)), accepts)

    def judge(self, node: int, children: list[int]) -> tuple[list[Number], Law]:
        """Chances of the children of a node, and the weights after all are rejected."""
        if node not in self._judged:
            known = self._path(node)
            drawn = [child for child in children if child in self._tokens]
            target_BV = exact_array([self._target.law(known)])
            law_of = self._law_of
            draft_BSV = None if law_of is None else exact_array([[law_of(child, known) for child in drawn]])
            siblings_BS = np.array([[self._tokens[child] for child in drawn]], dtype=np.int64)
            chances_BS, left_BV = self._judge_siblings(self._rule, target_BV, draft_BSV, siblings_BS)
            # A sibling that was not drawn, since nothing was left to draw from, comes last and is never accepted.
            chances = [*chances_BS[0], *([Fraction(0)] * (len(children) - len(drawn)))]
            self._judged[node] = chances, tuple(left_BV[0])
        return self._judged[node]

    def _path(self, node: int) -> tuple[int, ...]:
        if node not in self._paths:
            self._paths[node] = (*self._path(self._parents[node]), self._tokens[node])
        return self._paths[node]


KINDS: dict[str, tuple[Draw, SiblingRule]] = {
    "siblings with replacement": (draw_with_replacement, WithReplacement()),
    "siblings without replacement": (draw_without_replacement, WithoutReplacement()),
    "deterministic siblings": (take_best, Deterministic()),
}
