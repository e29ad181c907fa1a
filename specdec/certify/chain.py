"""Judges chain rules: the joint law of the first tokens over as many rounds as they take, in exact arithmetic."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np

from specdec.certify.chance import Chance, Number, every_run
from specdec.certify.drafts import DraftedChain, DraftSource
from specdec.certify.findings import Finding, smallest_counterexample
from specdec.certify.tables import Law, Table
from specdec.errors import UnsupportedError
from specdec.rules.chain import ChainRule
from specdec.rules.numbers import point_masses

# Repeats itself, so that a drafter that looks tokens up finds some; the newest token is 0.
ROOT = (0, 1, 2, 0, 2, 1, 0)


class Coins(Enum):
    """Which uniform decides whether a drafted token is kept.

    RULE   as the rule asks for: one of its own for each token, or one for the round
    ROUND  one for the round, whatever the rule asks for
    DRAFT  the one that drew the token
    """

    RULE = "rule"
    ROUND = "round"
    DRAFT = "draft"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainGame:
    """Decoding of ``num_tokens`` tokens after ``root`` with a rule and a drafter.

    coins             which uniforms decide
    coin_draws_final  whether the uniform that rejected a token also draws the correction (inverse CDF)
    """

    target: Table
    source: DraftSource
    rule: ChainRule
    num_tokens: int = 4
    root: tuple[int, ...] = ROOT
    coins: Coins = Coins.RULE
    coin_draws_final: bool = False

    def joint(self) -> tuple[dict[tuple[int, ...], Number], int]:
        """Probability of every output, and the number of outcomes that were enumerated."""
        open_by_length: list[dict[tuple, Number]] = [defaultdict(Fraction) for _ in range(self.num_tokens)]
        open_by_length[0][(), self.source.start] = Fraction(1)
        joint: dict[tuple[int, ...], Number] = defaultdict(Fraction)
        num_cases = 0
        for waiting in open_by_length:
            for (prefix, state), weight in waiting.items():
                for chance, emitted, following, _ in self._round(prefix, state):
                    num_cases += 1
                    longer = (prefix + emitted)[: self.num_tokens]
                    if len(longer) == self.num_tokens:
                        joint[longer] += weight * chance
                    else:
                        open_by_length[len(longer)][longer, following] += weight * chance
        assert abs(sum(joint.values()) - 1) < 1e-9, "probabilities sum to 1"
        return joint, num_cases

    def expected_accepted(self) -> Number:
        """Mean number of accepted drafted tokens of the first round."""
        return sum(chance * accepted for chance, _, _, accepted in self._round((), self.source.start))

    def finding(self, subject: str, setting: str) -> Finding:
        """The joint law against the target's."""
        joint, num_cases = self.joint()
        return Finding(
            subject=subject,
            setting=f"{setting}, {self.num_tokens} tokens",
            num_cases=num_cases,
            counterexample=smallest_counterexample(joint, self.target, self.root, self.num_tokens),
        )

    def _round(
        self, prefix: tuple[int, ...], state: Hashable
    ) -> Iterator[tuple[Number, tuple[int, ...], Hashable, int]]:
        """(probability, emitted tokens, state after it, accepted tokens) of every outcome of a round."""
        known, limit = self.root + prefix, self._limit(prefix)
        for draft_weight, draft in every_run(lambda chance: self.source.draft(chance, known, limit, state)):
            for weight, (emitted, accepted) in every_run(self._play(known, draft)):
                yield draft_weight * weight, emitted, draft.after(accepted), accepted

    def _limit(self, prefix: tuple[int, ...]) -> int:
        """Most tokens to draft after ``prefix``."""
        return self.num_tokens - len(prefix) - 1

    def _play(self, known: tuple[int, ...], draft: DraftedChain) -> Callable[[Chance], tuple[tuple[int, ...], int]]:
        """The judgement of a draft as a random program; its result is the emitted tokens and how many were accepted."""
        if draft.parents is not None:
            raise UnsupportedError("the rule judges chains, and the drafter proposed a tree")
        return _Judged(self, known, draft).play


class _Judged:
    """A draft before the rule."""

    def __init__(self, game: ChainGame, known: tuple[int, ...], draft: DraftedChain) -> None:
        self._game, self._draft = game, draft
        count = len(draft.tokens)
        rows = [game.target.law((*known, *draft.tokens[:n])) for n in range(count + 1)]
        self._last_law = rows[-1]
        if count == 0:
            return
        drafted_BK = np.array([draft.tokens], dtype=np.int64)
        target_BNV = exact_array([rows])
        draft_BKV = point_masses(drafted_BK, target_BNV) if draft.laws is None else exact_array([draft.laws])
        self._arguments = target_BNV, draft_BKV, drafted_BK
        self._num_drafted_B = np.array([count], dtype=np.int64)
        self._chances = list(game.rule.chances(*self._arguments, self._num_drafted_B)[0])
        self._weights: dict[int, Law] = {}

    def play(self, chance: Chance) -> tuple[tuple[int, ...], int]:
        """Emitted tokens and how many of them are accepted drafts."""
        tokens = self._draft.tokens
        if not tokens:
            return (chance.choose(self._last_law),), 0
        passed = self._toss(chance)
        accepted = int(self._game.rule.count(np.array([passed]), self._num_drafted_B)[0])
        weights = self._weights_after(accepted)
        if self._game.coin_draws_final and accepted < len(tokens):
            weights = part_above(weights, self._chances[accepted])
        return (*tokens[:accepted], chance.choose(weights)), accepted

    def _weights_after(self, accepted: int) -> Law:
        if accepted not in self._weights:
            accepted_B = np.array([accepted], dtype=np.int64)
            found_BV = self._game.rule.weights(*self._arguments, accepted_B, self._num_drafted_B)
            self._weights[accepted] = tuple(found_BV[0])
        return self._weights[accepted]

    def _toss(self, chance: Chance) -> list[bool]:
        coins = self._game.coins
        if coins is Coins.DRAFT:
            windows = zip(self._chances, self._draft.windows, strict=True)
            return [chance.toss(share_below(c, low, high)) for c, (low, high) in windows]
        if coins is Coins.ROUND or self._game.rule.one_coin:
            return toss_one(chance, self._chances)
        return [chance.toss(min(c, 1)) for c in self._chances]


def exact_array(nested: Sequence) -> np.ndarray:
    """A numpy array of Python numbers."""
    return np.array(nested, dtype=object)


def share_below(chance: Number, low: Number, high: Number) -> Number:
    """Probability that a uniform known to lie within ``[low, high)`` is below ``chance``."""
    return min(max((chance - low) / (high - low), 0), 1)


def toss_one(chance: Chance, chances: Sequence[Number]) -> list[bool]:
    """Whether one and the same uniform is below each chance."""
    cuts = sorted({min(max(c, 0), 1) for c in chances} | {0, 1})
    interval = chance.choose([high - low for low, high in zip(cuts, cuts[1:], strict=False)])
    return [c >= cuts[interval + 1] for c in chances]


def part_above(weights: Law, chance: Number) -> Law:
    """Weights of tokens that a uniform within ``[chance, 1)`` draws by inverse CDF."""
    scale, below, found = sum(weights), Fraction(0), []
    for weight in weights:
        upper = below + weight / scale
        found.append(max(upper - max(below, chance), 0))
        below = upper
    return tuple(found)
