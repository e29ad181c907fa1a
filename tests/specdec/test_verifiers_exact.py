"""Verification rules: exact losslessness and the goldens, by enumeration of everything that is random."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from specdec import ratio_rule
from specdec.api import Proposal
from specdec.verifiers import GumbelVerifier, RejectionVerifier

TWO = ([Fraction(1, 3), Fraction(2, 3)], [Fraction(2, 3), Fraction(1, 3)])
THREE = (
    [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)],
    [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)],
)
TOKEN_RATIO = {0: ["2/3", "10/9", "38/27", "130/81"], 1: ["2/3", "10/9", "38/27"]}
SAMPLE_AND_MATCH = {0: ["4/9", "52/81", "532/729", "5044/6561"], 1: ["7/24", "217/576", "5551/13824"]}
GOLDENS = [(c, k) for c, cases in TOKEN_RATIO.items() for k in range(1, len(cases) + 1)]


class GivenRandomness:
    """A TargetSampling whose law, coins and own choice are arguments; it keeps the weights of the last final draw."""

    wants_logprobs = False
    all_greedy = False

    def __init__(self, law_BNV: torch.Tensor, *, coins_BK=None, choice_BN=None) -> None:
        self.law_BNV, self.coins_BK, self.choice_BN = law_BNV, coins_BK, choice_BN
        self.weights_BV = None

    def law(self, logits_BNV, drafted_BK, positions_B):
        return self.law_BNV

    def choose(self, logits_BNV, drafted_BK, positions_B):
        return self.choice_BN

    def acceptance_uniforms(self, positions_B, width):
        return self.coins_BK

    def final_draw(self, weights_BV, positions_B, is_residual_B):
        self.weights_BV = weights_BV
        return torch.zeros(len(weights_BV), dtype=torch.int64)


def table(law: list[Fraction], rows: int) -> torch.Tensor:
    return torch.tensor([float(x) for x in law], dtype=torch.float64).expand(1, rows, len(law))


def judge_given(law_NV, draft_KV, drafted_CK, coins_CK):
    """Accepted counts [C] and final weights [C, V] of the rejection verifier for given drafts and coins."""
    cases = len(drafted_CK)
    law_CNV = law_NV.expand(cases, -1, -1)
    probs = None if draft_KV is None else draft_KV.expand(cases, -1, -1)
    sampling = GivenRandomness(law_CNV, coins_BK=coins_CK)
    num_drafted = torch.full((cases,), drafted_CK.shape[1])
    proposal = Proposal(tokens_BK=drafted_CK, num_drafted_B=num_drafted, probs_BKV=probs)
    verdict = RejectionVerifier().judge(law_CNV, proposal, sampling, torch.zeros(cases, dtype=torch.int64))
    return verdict.num_accepted_B, sampling.weights_BV


def acceptance_by_bisection(law_NV, draft_KV, drafted_CK, depth: int) -> torch.Tensor:
    """Largest coin [C] at which the drafted token of ``depth`` is still accepted, the ones before being accepted."""
    low, high = torch.zeros(len(drafted_CK), dtype=torch.float64), torch.ones(len(drafted_CK), dtype=torch.float64)
    for _ in range(54):
        middle = (low + high) / 2
        coins = torch.full(drafted_CK.shape, 1e-300, dtype=torch.float64)
        coins[:, depth] = middle
        accepted = judge_given(law_NV, draft_KV, drafted_CK, coins)[0] > depth
        low, high = torch.where(accepted, middle, low), torch.where(accepted, high, middle)
    return high


def enumerate_round(law_NV, draft_KV, drawn_KV=None) -> tuple[torch.Tensor, float]:
    """Exact joint law of the first K + 1 tokens, [V, ...] with K + 1 axes, and the expected number accepted.

    Drafts come from ``drawn_KV`` (the reported law unless given); tokens after the round are plain decoding's.
    """
    drawn_KV = draft_KV if drawn_KV is None else drawn_KV
    width, vocab = law_NV.shape[-2:]
    joint, expected = torch.zeros([vocab] * width, dtype=torch.float64), 0.0
    drafted_CK = torch.tensor(list(itertools.product(range(vocab), repeat=width - 1)))
    chance_C = drawn_KV[0].expand(width - 1, vocab).gather(1, drafted_CK.T).prod(0)
    drafted_CK, chance_C = drafted_CK[chance_C > 0], chance_C[chance_C > 0]
    for depth in range(width):
        coins = torch.full(drafted_CK.shape, 1e-300, dtype=torch.float64)
        chance_end_C = chance_C
        if depth < width - 1:
            coins[:, depth] = 1 - 2**-53
            accepted_C = acceptance_by_bisection(law_NV, draft_KV, drafted_CK, depth)
            chance_end_C = chance_C * (1 - accepted_C)
            chance_C = chance_C * accepted_C
            expected += chance_C.sum().item()
        count_C, weights_CV = judge_given(law_NV, draft_KV, drafted_CK, coins)
        for case in (count_C == depth).nonzero().flatten().tolist():
            final_V = chance_end_C[case] * weights_CV[case] / weights_CV[case].sum()
            for row in range(depth + 1, width):
                final_V = final_V.unsqueeze(-1) * law_NV[0, row]
            joint[tuple(drafted_CK[case, :depth].tolist())] += final_V
    return joint, expected


def plain_law(law_NV: torch.Tensor) -> torch.Tensor:
    joint = law_NV[0, 0]
    for row in range(1, law_NV.shape[1]):
        joint = joint.unsqueeze(-1) * law_NV[0, row]
    return joint


@pytest.mark.parametrize(("case", "width"), GOLDENS)
def test_rejection_is_exactly_lossless_and_accepts_as_the_goldens(case: int, width: int) -> None:
    target, draft = (TWO, THREE)[case]
    law, reported = table(target, width + 1), table(draft, width)
    joint, expected = enumerate_round(law, reported)
    assert (joint - plain_law(law)).abs().max() < 1e-12
    assert abs(expected - float(Fraction(TOKEN_RATIO[case][width - 1]))) < 1e-12


@pytest.mark.parametrize("with_law", [True, False])
def test_rejection_is_exactly_lossless_for_laws_that_change_by_row(with_law: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    law = torch.rand(1, 3, 3, generator=generator, dtype=torch.float64)
    law[0, 1, 2] = 0
    law = law / law.sum(-1, keepdim=True)
    draft = torch.rand(1, 2, 3, generator=generator, dtype=torch.float64)
    draft[0, 0, 1] = 0
    draft = draft / draft.sum(-1, keepdim=True)
    # Without a reported law any draft is a point mass on its token: lossless whatever it was drawn from.
    joint, _ = enumerate_round(law, draft if with_law else None, drawn_KV=draft)
    assert (joint - plain_law(law)).abs().max() < 1e-12


def test_rejection_is_lossless_when_the_laws_are_equal_or_disjoint() -> None:
    law = table([Fraction(1, 4), Fraction(3, 4), Fraction(0)], 2)
    for draft in (law[:, :1], table([Fraction(0), Fraction(0), Fraction(1)], 1)):
        joint, _ = enumerate_round(law, draft)
        assert (joint - plain_law(law)).abs().max() < 1e-12


def first_token_law(draft: torch.Tensor, drawn: torch.Tensor | None = None) -> torch.Tensor:
    return enumerate_round(table(THREE[0], 2), draft, drawn)[0].sum(1)


def test_enumeration_finds_a_misreported_law() -> None:
    """Mutants M1 and M2: argmax or top-2 drafts that report the whole softmax."""
    reported = table(THREE[1], 1)
    argmax = table([Fraction(0), Fraction(0), Fraction(1)], 1)
    top_two = table([Fraction(0), Fraction(1, 3), Fraction(2, 3)], 1)
    want_argmax, want_top_two = torch.tensor([3, 1, 2]).double() / 6, torch.tensor([3, 4, 2]).double() / 9
    assert (first_token_law(reported, argmax) - want_argmax).abs().max() < 1e-12
    assert (first_token_law(reported, top_two) - want_top_two).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("mutant", "want"),
    [
        (lambda p, q: (p - q).clamp(min=0).softmax(-1), [0.3770, 0.3575, 0.2656]),
        (lambda p, q: p, [5 / 12, 13 / 36, 2 / 9]),
    ],
)
def test_enumeration_finds_a_wrong_residual(mutant, want, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants M3 and M4."""
    monkeypatch.setattr(ratio_rule, "residual", mutant)
    out = first_token_law(table(THREE[1], 1))
    assert (out - torch.tensor(want, dtype=torch.float64)).abs().max() < 1e-4


def test_enumeration_finds_an_unverified_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant M7."""
    monkeypatch.setattr(ratio_rule, "acceptance", lambda p, q: torch.full_like(p, 2.0))
    out = first_token_law(table(THREE[1], 1))
    assert (out - torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)).abs().max() < 1e-12


@pytest.mark.parametrize(("case", "width"), GOLDENS)
def test_gumbel_is_exactly_lossless_and_matches_as_the_goldens(case: int, width: int) -> None:
    """Every own choice of the target against every independent draft, weighted by exact fractions."""
    target, draft = (TWO, THREE)[case]
    ids = range(len(target))
    choices = list(itertools.product(ids, repeat=width + 1))
    drafts = list(itertools.product(ids, repeat=width))
    choice_BN = torch.tensor(choices).repeat_interleave(len(drafts), 0)
    drafted_BK = torch.tensor(drafts).repeat(len(choices), 1)
    num_drafted = torch.full((len(choice_BN),), width)
    logits = torch.zeros(len(choice_BN), width + 1, len(target))
    verdict = GumbelVerifier().judge(
        logits,
        Proposal(tokens_BK=drafted_BK, num_drafted_B=num_drafted),
        GivenRandomness(logits, choice_BN=choice_BN),
        torch.zeros_like(num_drafted),
    )
    expected = Fraction(0)
    counts = verdict.num_accepted_B.tolist()
    for (choice, drafted), count in zip(itertools.product(choices, drafts), counts, strict=True):
        expected += count * math.prod(target[c] for c in choice) * math.prod(draft[d] for d in drafted)
    assert expected == Fraction(SAMPLE_AND_MATCH[case][width - 1])
    # What is committed is the target's own choice, whatever was drafted.
    assert torch.equal(verdict.tokens_BN, choice_BN)
    assert (choice_BN[:, :-1] == drafted_BK)[torch.arange(width) < verdict.num_accepted_B[:, None]].all()


def test_ratio_rule_gives_the_golden_overlap_and_residual() -> None:
    p, q = table(THREE[0], 1)[0, 0], table(THREE[1], 1)[0, 0]
    assert abs(ratio_rule.overlap(p, q) - 2 / 3) < 1e-15
    left = ratio_rule.residual(p, q)
    torch.testing.assert_close(left / left.sum(), torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64))
