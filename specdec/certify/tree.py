"""Judges sibling rules over trees of drafted tokens: every draw of the tree, every walk down it."""

from collections import defaultdict
from collections.abc import Callable, Iterator
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
            walk = _Walk(self, known, tokens)
            for weight, emitted in every_run(walk.play):
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


class _Walk:
    """The walks down one drawn tree."""

    def __init__(self, game: TreeGame, known: tuple[int, ...], tokens: dict[int, int]) -> None:
        self._game, self._tokens = game, tokens
        self._paths = {siblings.ROOT: known}
        self._judged: dict[int, tuple[list[Number], Law]] = {}

    def play(self, chance: Chance) -> tuple[int, ...]:
        """Emitted tokens: accepted ones and one more."""
        accepted, weights = siblings.walk_tree(
            self._game.parents, self._judge, lambda node: self._game.target.law(self._path(node)), chance.toss
        )
        return (*(self._tokens[node] for node in accepted), chance.choose(weights))

    def _path(self, node: int) -> tuple[int, ...]:
        if node not in self._paths:
            self._paths[node] = (*self._path(self._game.parents[node]), self._tokens[node])
        return self._paths[node]

    def _judge(self, node: int, children: list[int]) -> tuple[list[Number], Law]:
        if node not in self._judged:
            game, known = self._game, self._path(node)
            drawn = [child for child in children if child in self._tokens]
            target_BV = exact_array([game.target.law(known)])
            draft_BSV = (
                None if isinstance(game.rule, Deterministic) else exact_array([[game.draft.law(known)] * len(drawn)])
            )
            siblings_BS = np.array([[self._tokens[child] for child in drawn]], dtype=np.int64)
            chances_BS, left_BV = game.judge(game.rule, target_BV, draft_BSV, siblings_BS)
            # A sibling that was not drawn, since nothing was left to draw from, comes last and is never accepted.
            chances = [*chances_BS[0], *([Fraction(0)] * (len(children) - len(drawn)))]
            self._judged[node] = chances, tuple(left_BV[0])
        return self._judged[node]


KINDS: dict[str, tuple[Draw, SiblingRule]] = {
    "siblings with replacement": (draw_with_replacement, WithReplacement()),
    "siblings without replacement": (draw_without_replacement, WithoutReplacement()),
    "deterministic siblings": (take_best, Deterministic()),
}
