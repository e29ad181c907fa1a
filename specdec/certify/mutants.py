"""Mutants: wrong decoding that the certificate must find, by arithmetic, by report, and by shared randomness."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdec.api import Verifier
from specdec.certify import wrong_rules
from specdec.certify.chain import ChainGame, Coins
from specdec.certify.drafts import TableDrafts
from specdec.certify.findings import Finding
from specdec.certify.judges import judge_by_coupling
from specdec.certify.tables import BIGRAM, IID, Pair, Table, argmax_table, table
from specdec.certify.tree import (
    TWO_SIBLINGS,
    Draw,
    JudgeSiblings,
    TreeGame,
    draw_with_replacement,
    draw_without_replacement,
    take_best,
)
from specdec.rules.chain import BlockRule, ChainRule, TokenRatioRule, TypicalRule
from specdec.rules.siblings import SiblingRule, WithoutReplacement, WithReplacement, judge_siblings

NUM_TOKENS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """What is wrong, and decoding that does it."""

    name: str
    game: ChainGame | TreeGame | Verifier

    def finding(self) -> Finding:
        """What the certificate says of it; a counterexample, or the certificate is at fault."""
        if isinstance(self.game, ChainGame | TreeGame):
            return self.game.finding(self.name, "small tables")
        return judge_by_coupling(self.game)


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant; the first eight are those of the list that is known by numbers."""
    return (*_numbered(), *_chains(), *_blocks(), *_siblings(), *_reports(), *_couplings())


def _chain(
    rule: ChainRule,
    *,
    most: int = 1,
    pair: Pair = IID,
    drafts: TableDrafts | None = None,
    coins: Coins = Coins.RULE,
    coin_draws_final: bool = False,
    num_tokens: int = NUM_TOKENS,
) -> ChainGame:
    return ChainGame(
        target=pair.target,
        source=drafts or TableDrafts(drawn=pair.draft, reported=pair.draft, most=most),
        rule=rule,
        num_tokens=num_tokens,
        coins=coins,
        coin_draws_final=coin_draws_final,
    )


def _tree(draw: Draw, rule: SiblingRule, *, judge: JudgeSiblings = judge_siblings) -> TreeGame:
    return TreeGame(
        target=IID.target,
        draft=IID.draft,
        parents=TWO_SIBLINGS,
        draw=draw,
        rule=rule,
        judge=judge,
        num_tokens=NUM_TOKENS,
    )


def _misreported(drawn: Table, reported: Table | None, *, pair: Pair = IID) -> ChainGame:
    return _chain(TokenRatioRule(), pair=pair, drafts=TableDrafts(drawn=drawn, reported=reported, most=1))


def _numbered() -> list[Mutant]:
    ratio = TokenRatioRule()
    games = {
        "M1 drafts the argmax, reports the softmax": _misreported(argmax_table(IID.draft), IID.draft),
        "M2 drafts from two tokens, reports the law of all": _misreported(table("0 1/3 2/3"), IID.draft),
        "M3 softmax of the residual": _chain(wrong_rules.SoftmaxResidual()),
        "M4 correction from the target's law": _chain(wrong_rules.DrawFromTarget()),
        "M5 correction from the target's law without the draft": _chain(wrong_rules.DrawFromTargetWithoutDraft()),
        "M6 one uniform draws and judges the draft": _chain(ratio, coins=Coins.DRAFT),
        "M7 first drafted token unverified": _chain(wrong_rules.FirstUnverified()),
        "M8 bonus from the residual": _chain(wrong_rules.BonusFromResidual()),
    }
    return _named(games)


def _chains() -> list[Mutant]:
    ratio = TokenRatioRule()
    games = {
        "bonus from the row before": _chain(wrong_rules.BonusOfRowBefore(), pair=BIGRAM),
        "counts every token that passes": _chain(wrong_rules.CountsEveryPass(), most=2),
        "ratio upside down": _chain(wrong_rules.InvertedRatio()),
        "a sampled draft judged as a point mass": _chain(wrong_rules.ChanceOfPointMass()),
        "draws again after a mismatch": _chain(wrong_rules.MatchesAndDrawsAgain()),
        "absolute difference as residual": _chain(wrong_rules.AbsoluteResidual()),
        "one uniform for all drafted tokens of a round": _chain(ratio, most=2, coins=Coins.ROUND),
        "the rejecting uniform draws the correction": _chain(ratio, coin_draws_final=True),
        "typical acceptance": _chain(TypicalRule(epsilon=0.09, delta=0.3)),
        "threshold acceptance": _chain(TypicalRule(epsilon=0.25)),
    }
    return _named(games)


def _blocks() -> list[Mutant]:
    repeated = TableDrafts(drawn=IID.draft, reported=IID.draft, most=2, repeats_noise=True)
    games = {
        "block verification with the token's residual": _chain(
            wrong_rules.BlockWithTokenResidual(), most=3, num_tokens=4
        ),
        "block verification without the excess": _chain(wrong_rules.BlockWithoutExcess(), most=2),
        "block verification with a ratio cut at the end": _chain(wrong_rules.BlockWithUncutRatio(), most=2),
        "block verification with draft noise by position": _chain(BlockRule(), drafts=repeated, num_tokens=4),
    }
    return _named(games)


def _siblings() -> list[Mutant]:
    against, first = wrong_rules.siblings_against_target, wrong_rules.siblings_with_first_residual
    games = {
        "siblings all tested against the target": _tree(draw_with_replacement, WithReplacement(), judge=against),
        "correction from the first sibling's residual": _tree(draw_with_replacement, WithReplacement(), judge=first),
        "drawn without replacement, judged as with": _tree(draw_without_replacement, WithReplacement()),
        "drawn with replacement, judged as without": _tree(draw_with_replacement, WithoutReplacement()),
        "a top-2 judged as drawn": _tree(take_best, WithoutReplacement()),
    }
    return _named(games)


def _reports() -> list[Mutant]:
    sharper = table("1/6 1/6 2/3")
    shifted = Table(BIGRAM.draft.rows[1:] + BIGRAM.draft.rows[:1])
    hides, likely = (replace(_sampled(1), keeps=keeps) for keeps in (_leading(0, 1), _leading(2)))
    cut = replace(_sampled(2), keeps=_leading(0, 1))
    games = {
        "reports the law of another temperature": _misreported(IID.draft, sharper),
        "reports the law of another position": _misreported(BIGRAM.draft, shifted, pair=BIGRAM),
        "drops a drafted token after looking at it": _chain(TokenRatioRule(), drafts=hides),
        "drops drafted tokens that turned out unlikely": _chain(TokenRatioRule(), drafts=likely),
        "block verification of a draft cut after looking at it": _chain(BlockRule(), drafts=cut),
    }
    return _named(games)


def _sampled(most: int) -> TableDrafts:
    return TableDrafts(drawn=IID.draft, reported=IID.draft, most=most)


def _leading(*wanted: int) -> Callable[[Sequence[int]], int]:
    """How many drafted tokens come before the first that is not ``wanted``: a look at the token that is dropped."""
    return lambda tokens: next((i for i, token in enumerate(tokens) if token not in wanted), len(tokens))


def _couplings() -> list[Mutant]:
    verifiers = (wrong_rules.CountsLaterMatches(), wrong_rules.CommitsTheMismatch())
    return [Mutant(name=verifier.name, game=verifier) for verifier in verifiers]


def _named(games: dict[str, ChainGame | TreeGame]) -> list[Mutant]:
    return [Mutant(name=name, game=game) for name, game in games.items()]
