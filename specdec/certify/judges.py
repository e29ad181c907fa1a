"""Judges the verifiers that decode: by the coupling that they declare, and against the rule that they are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import torch

from specdec.api import Proposal, TreeRows, Verdict, Verifier
from specdec.certify.chain import exact_array
from specdec.certify.findings import Counterexample, Finding
from specdec.certify.tables import Pair
from specdec.errors import SpecDecError
from specdec.rules.chain import ChainRule
from specdec.rules.numbers import point_masses
from specdec.verifiers import RuleVerifier

# Fractions against float64 tensors.
TOLERANCE = 1e-9
MATCHES = "output against the target's own choice"


class UntiedError(SpecDecError, RuntimeError):
    """A verifier decides otherwise than the rule that it is said to be made of."""


class GivenSampling:
    """A TargetSampling whose laws, choices and coins are arguments; it keeps what the final draw was asked for."""

    wants_logprobs = False

    def __init__(
        self,
        *,
        all_greedy: bool = False,
        law_BNV: torch.Tensor | None = None,
        choice_BN: torch.Tensor | None = None,
        coins_BX: torch.Tensor | None = None,
    ) -> None:
        self.all_greedy = all_greedy
        self._law_BNV, self._choice_BN, self._coins_BX = law_BNV, choice_BN, coins_BX
        self.weights_BV: torch.Tensor | None = None
        self.is_residual_B: torch.Tensor | None = None
        self.positions_B: torch.Tensor | None = None

    def along(self, tree: TreeRows) -> "GivenSampling":
        """The same: what is given is given by row and by node."""
        return self

    def adjust(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """The logits."""
        return logits_BNV

    def law(self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor) -> torch.Tensor:
        """The given laws."""
        return self._law_BNV

    def choose(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """The given choices."""
        return self._choice_BN

    def acceptance_uniforms(self, positions_B: torch.Tensor, width: int) -> torch.Tensor:
        """The given coins."""
        assert width == self._coins_BX.shape[1], "as many uniforms as the rule asks for"
        return self._coins_BX

    def final_draw(
        self, weights_BV: torch.Tensor, positions_B: torch.Tensor, is_residual_B: torch.Tensor
    ) -> torch.Tensor:
        """The heaviest token."""
        self.weights_BV, self.positions_B, self.is_residual_B = weights_BV, positions_B, is_residual_B
        return weights_BV.argmax(dim=-1)


def judge_by_coupling(verifier: Verifier, *, vocab_size: int = 3, most: int = 3, all_greedy: bool = False) -> Finding:
    """Every drafted chain against every own choice of the target: the output must be the target's own choice.

    all_greedy  judge what a rule verifier does when every request is greedy
    """
    num_cases = 0
    for width in range(1, most + 1):
        choices = list(product(range(vocab_size), repeat=width + 1))
        drafts = list(product(range(vocab_size), repeat=width))
        choice_BN = torch.tensor(choices).repeat_interleave(len(drafts), 0)
        drafted_BK = torch.tensor(drafts).repeat(len(choices), 1)
        logits_BNV = torch.nn.functional.one_hot(choice_BN, vocab_size).float()
        for count in range(width + 1):
            num_drafted_B = torch.full((len(choice_BN),), count)
            verdict = verifier.judge(
                logits_BNV,
                Proposal(tokens_BK=drafted_BK, num_drafted_B=num_drafted_B),
                GivenSampling(all_greedy=all_greedy, choice_BN=choice_BN, law_BNV=logits_BNV),
                torch.full_like(num_drafted_B, 7),
            )
            num_cases += len(choice_BN)
            wrong = _wrong_choice(verdict, choice_BN, drafted_BK[:, :count], vocab_size)
            if wrong is not None:
                return Finding(subject=_name(verifier), setting=MATCHES, num_cases=num_cases, counterexample=wrong)
    setting = f"{MATCHES}: every draft of 0 to {most} tokens against every choice"
    return Finding(subject=_name(verifier), setting=setting, num_cases=num_cases, counterexample=None)


def _name(verifier: Verifier) -> str:
    return f"verifier {verifier.name}"


def _wrong_choice(
    verdict: Verdict, choice_BN: torch.Tensor, drafted_BC: torch.Tensor, vocab_size: int
) -> Counterexample | None:
    """The smallest case in which a committed token is not the target's own choice after the tokens before it."""
    found: Counterexample | None = None
    lines = zip(
        verdict.num_accepted_B.tolist(),
        verdict.tokens_BN.tolist(),
        choice_BN.tolist(),
        drafted_BC.tolist(),
        strict=True,
    )
    for accepted, tokens, choices, drafted in lines:
        # A choice was made after the drafted tokens before it, so accepted tokens count as they were drafted.
        emitted = (*drafted[:accepted], tokens[accepted])
        at = next((i for i, token in enumerate(emitted) if token != choices[i] or tokens[i] != choices[i]), None)
        if at is not None and (found is None or at < len(found.prefix)):
            wrong = emitted[at] if emitted[at] != choices[at] else tokens[at]
            found = Counterexample(
                prefix=emitted[:at], wanted=point_law(choices[at], vocab_size), found=point_law(wrong, vocab_size)
            )
    return found


def point_law(token: int, vocab_size: int) -> tuple[Fraction, ...]:
    """All mass on one token."""
    return tuple(Fraction(int(i == token)) for i in range(vocab_size))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A drafted chain with coins on either side of its chances, and what the rule says."""

    rows: Sequence
    laws: Sequence
    drafted: tuple[int, ...]
    count: int
    coins: tuple[float, ...]
    accepted: int
    weights: tuple[float, ...]


def tie_to_rule(verifier: RuleVerifier, pairs: Sequence[Pair], *, most: int = 3) -> int:
    """Check that ``judge`` does what its rule says, with coins given; returns the number of cases.

    Raises UntiedError where tensors and fractions disagree.
    """
    num_cases = 0
    for pair in pairs:
        for width in range(1, most + 1):
            cases = list(_cases(verifier.rule, pair, width))
            num_cases += len(cases)
            _check(verifier, cases)
    return num_cases


def _cases(rule: ChainRule, pair: Pair, width: int) -> Iterator[_Case]:
    starts, counts = range(len(pair.target.rows)), range(max(width - 1, 1), width + 1)
    for start, count in product(starts, counts):
        for drafted in product(range(pair.target.vocab_size), repeat=width):
            rows = [pair.target.law((start, *drafted[:n])) for n in range(width + 1)]
            laws = [pair.draft.law((start, *drafted[:n])) for n in range(width)]
            target_BNV, drafted_BK = exact_array([rows]), np.array([drafted])
            count_B = np.array([count])
            if not all(law[token] for law, token in zip(laws, drafted, strict=True)):
                laws = list(point_masses(drafted_BK, target_BNV)[0])
            arguments = target_BNV, exact_array([laws]), drafted_BK
            chances = [min(max(float(c), 0.0), 1.0) for c in rule.chances(*arguments, count_B)[0]]
            for coins in _coins(chances, one=rule.one_coin):
                accepted_B = rule.count(np.array([[u < c for u, c in zip(coins, chances, strict=True)]]), count_B)
                weights_V = rule.weights(*arguments, accepted_B, count_B)[0]
                scale = sum(weights_V)
                yield _Case(
                    rows=rows,
                    laws=laws,
                    drafted=drafted,
                    count=count,
                    coins=coins[:1] if rule.one_coin else coins,
                    accepted=int(accepted_B[0]),
                    weights=tuple(float(w / scale) for w in weights_V),
                )


def _coins(chances: list[float], *, one: bool) -> Iterator[tuple[float, ...]]:
    """Uniforms in every interval that the chances leave: one for all tokens, or one each."""
    if one:
        cuts = sorted({0.0, 1.0, *chances})
        yield from (((low + high) / 2,) * len(chances) for low, high in zip(cuts, cuts[1:], strict=False))
        return
    sides = [tuple(u for u in (c / 2, (1 + c) / 2) if 0 < u < 1) for c in chances]
    yield from product(*sides)


def _check(verifier: RuleVerifier, cases: Sequence[_Case]) -> None:
    def table(rows: list) -> torch.Tensor:
        return torch.from_numpy(np.array(rows, dtype=object).astype(np.float64))

    law_BNV = table([case.rows for case in cases])
    sampling = GivenSampling(law_BNV=law_BNV, coins_BX=torch.tensor([case.coins for case in cases]).double())
    drafted_BK = torch.tensor([case.drafted for case in cases])
    proposal = Proposal(
        tokens_BK=drafted_BK,
        num_drafted_B=torch.tensor([case.count for case in cases]),
        probs_BKV=table([case.laws for case in cases]),
    )
    positions_B = torch.arange(len(cases))
    verdict = verifier.judge(law_BNV, proposal, sampling, positions_B)
    accepted_B = torch.tensor([case.accepted for case in cases])
    _tied(verifier, verdict.num_accepted_B.equal(accepted_B), "another number of tokens is accepted")
    weights_BV = sampling.weights_BV / sampling.weights_BV.sum(-1, keepdim=True)
    wanted_BV = torch.tensor([case.weights for case in cases], dtype=weights_BV.dtype)
    close = bool((weights_BV - wanted_BV).abs().max() < TOLERANCE)
    _tied(verifier, close, "the last token is drawn from another law")
    same_place = sampling.positions_B.equal(positions_B + accepted_B)
    _tied(verifier, same_place, "the last token is drawn with the noise of another position")
    is_correction_B = accepted_B < proposal.num_drafted_B
    _tied(verifier, sampling.is_residual_B.equal(is_correction_B), "correction and bonus are confused")
    final_B = sampling.weights_BV.argmax(-1)
    emitted = [[*case.drafted[: case.accepted], int(final_B[b])] for b, case in enumerate(cases)]
    found = [line[: case.accepted + 1] for line, case in zip(verdict.tokens_BN.tolist(), cases, strict=True)]
    _tied(verifier, found == emitted, "other tokens are committed")


def _tied(verifier: RuleVerifier, holds: bool, otherwise: str) -> None:
    if not holds:
        raise UntiedError(f"verifier {verifier.name}: judge() does not do what its rule says: {otherwise}")
