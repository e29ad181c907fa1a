"""Losslessness: which evidence counts for which rule."""

import pytest

from experiments.lossless import Judgement, NotLosslessError, judge, require
from specdec.request import FinishReason, RequestOutput
from specdec.testing import ForcedVerifier
from specdec.verifiers import GumbelVerifier, RejectionVerifier


def output(name: str, ids: tuple[int, ...], prompt: tuple[int, ...] = (1,)) -> RequestOutput:
    return RequestOutput(
        request_id=name,
        turn=0,
        category="",
        prompt_ids=prompt,
        output_ids=ids,
        text="",
        finish_reason=FinishReason.LENGTH,
        logprobs=None,
        steps=(),
        num_preemptions=0,
        first_token_us=0.0,
        total_us=0.0,
    )


PLAIN = {("a", 0): ((1,), (5, 6, 7)), ("b", 0): ((1,), (8, 9))}


def test_equal_outputs_prove_a_matching_rule() -> None:
    found = judge(GumbelVerifier(), [output("b", (8, 9)), output("a", (5, 6, 7))], PLAIN)
    assert found == Judgement(lossless=True, how=GumbelVerifier.lossless_how, differences=())


@pytest.mark.parametrize(
    ("a", "said"),
    [
        (output("a", (5, 0, 7)), "token 1 is 0 instead of 6"),
        (output("a", (5, 6)), "2 tokens instead of 3"),
        (output("a", (5, 6, 7), prompt=(2,)), "the prompts differ"),
    ],
)
def test_any_difference_is_named_with_its_place(a: RequestOutput, said: str) -> None:
    found = judge(GumbelVerifier(), [a, output("b", (8, 9))], PLAIN)
    assert found.lossless is False
    assert found.how == f"1 of 2 outputs differ from the baseline, the first at a turn 0: {said}"


def test_missing_request_is_a_difference() -> None:
    found = judge(GumbelVerifier(), [output("a", (5, 6, 7))], PLAIN)
    assert found.lossless is False and "one run has it" in found.how


def test_ratio_rule_is_lossless_by_its_rule_whatever_the_tokens() -> None:
    assert judge(RejectionVerifier(), [output("a", (0,))], PLAIN) == Judgement(lossless=True, how="rule")


def test_lossy_rule_says_so_even_when_outputs_agree() -> None:
    found = judge(ForcedVerifier([1]), [output("a", (5, 6, 7)), output("b", (8, 9))], PLAIN)
    assert found.lossless is False and "lossy" in found.how


def test_nothing_to_compare_with_proves_nothing() -> None:
    found = judge(GumbelVerifier(), [output("a", (5, 6, 7))], None)
    assert found.lossless is None
    with pytest.raises(NotLosslessError, match="no baseline"):
        require(found)
