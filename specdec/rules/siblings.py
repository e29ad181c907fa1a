"""Rules for several drafted tokens at one position, and the walk down a tree of them; over a number type.

One recursion serves all: the first sibling is tested against the target's law, a rejection leaves the normalised
residual, and the next sibling is tested against that. The rules differ in the law that a sibling was drawn from.

    WithReplacement      independent draws from one law (SpecInfer: Miao et al., 2023, arXiv 2305.09781)
    WithoutReplacement   later draws exclude the earlier ones (recursive rejection: Jeon et al., 2024, 2402.14160)
    Deterministic        siblings that were not drawn at all, for example a top-k: target probabilities only
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from specdec import ratio_rule
from specdec.rules import numbers
from specdec.rules.numbers import Array

ROOT = -1


class SiblingRule(Protocol):
    """The law of every sibling given the ones before it.

    Arguments: law of one draw for each sibling [B, S, V], or None for siblings that were not drawn; the siblings in
    order [B, S]; the target's law at their position [B, V], for its shape and type. Siblings that were drawn have one
    law; point masses among them, which differ, are judged as such.
    """

    lossless: bool

    def laws(self, draft_BSV: Array | None, siblings_BS: Array, target_BV: Array) -> list[Array]:
        """S laws [B, V]."""


class WithReplacement:
    """Siblings are independent draws; equal ones may occur."""

    lossless = True

    def laws(self, draft_BSV: Array | None, siblings_BS: Array, target_BV: Array) -> list[Array]:
        """See ``SiblingRule``."""
        assert draft_BSV is not None, "sampled siblings report the law that they were drawn from"
        return [draft_BSV[:, s] for s in range(siblings_BS.shape[1])]


class WithoutReplacement:
    """Siblings are drawn one after the other from what is left of the law."""

    lossless = True

    def laws(self, draft_BSV: Array | None, siblings_BS: Array, target_BV: Array) -> list[Array]:
        """See ``SiblingRule``."""
        assert draft_BSV is not None, "sampled siblings report the law that they were drawn from"
        found = [draft_BSV[:, 0]]
        is_taken_BV = draft_BSV[:, 0] < 0
        for s in range(1, siblings_BS.shape[1]):
            own_BV = draft_BSV[:, s]
            is_taken_BV = is_taken_BV | (numbers.point_masses(siblings_BS[:, s - 1], own_BV) > 0)
            found.append(normalised(numbers.where(is_taken_BV, own_BV * 0, own_BV)))
        return found


class Deterministic:
    """Siblings are point masses, whatever chose them."""

    lossless = True

    def laws(self, draft_BSV: Array | None, siblings_BS: Array, target_BV: Array) -> list[Array]:
        """See ``SiblingRule``."""
        return [numbers.point_masses(siblings_BS[:, s], target_BV) for s in range(siblings_BS.shape[1])]


def normalised(weights_BV: Array) -> Array:
    """Weights over their sum; weights without a sum stay as they are."""
    sum_B1 = numbers.total(weights_BV)[:, None]
    return weights_BV / numbers.where(sum_B1 > 0, sum_B1, 1)


def judge_siblings(
    rule: SiblingRule, target_BV: Array, draft_BSV: Array | None, siblings_BS: Array
) -> tuple[Array, Array]:
    """Chance of each sibling once those before it are rejected [B, S], and the law after all are rejected [B, V]."""
    chances, left_BV = [], target_BV
    for s, law_BV in enumerate(rule.laws(draft_BSV, siblings_BS, target_BV)):
        p_B = numbers.wide(numbers.pick(left_BV, siblings_BS[:, s]))
        q_B = numbers.wide(numbers.pick(law_BV, siblings_BS[:, s]))
        chances.append(ratio_rule.acceptance(p_B, q_B))
        left_BV = normalised(ratio_rule.residual(left_BV, law_BV))
    return numbers.stack(chances), left_BV


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """Children of every node in the order in which they are listed; the parent of a first node is ``ROOT``."""
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        found.setdefault(parent, []).append(node)
    return found


def walk_tree(
    parents: Sequence[int],
    judge: Callable[[int, list[int]], tuple[Sequence, Sequence]],
    plain: Callable[[int], Sequence],
    accepts: Callable[[object], bool],
) -> tuple[list[int], Sequence]:
    """Walk from the last committed token down to the first node whose children are all rejected.

    parents  index of each node's parent, in any order; ``ROOT`` for those that follow the last committed token
    judge    (node, its children) -> chances of the children and the weights after all are rejected
    plain    node -> target law after it, for a node without children
    accepts  whether a child with this chance is accepted

    Returns the accepted nodes in order and the weights of the token that ends the round.
    """
    children, node = children_of(parents), ROOT
    accepted: list[int] = []
    while node in children:
        chances, weights = judge(node, children[node])
        kept = next((c for c, chance in zip(children[node], chances, strict=True) if accepts(chance)), None)
        if kept is None:
            return accepted, weights
        accepted.append(kept)
        node = kept
    return accepted, plain(node)
