import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.sampling_params import SamplingParams
from specdec.stops import FinishReason, StopChecker, StopStrings

EOS = 0


def letters(ids) -> str:
    """Token 0 is a special token without text; every other one is a letter."""
    return "".join("-abcdefgh"[i] for i in ids if i)


def utf8(ids) -> str:
    """Tokens are bytes, as in a byte-level tokenizer."""
    return bytes(ids).decode("utf-8", errors="replace")


def checker(max_output: int = 100, **sampling) -> StopChecker:
    params = SamplingParams(**sampling)
    return StopChecker(params, eos_ids=(EOS,), max_output=max_output, detokenize=letters)


def push_all(stops: StopChecker, tokens) -> tuple[int, FinishReason | None]:
    """How many tokens go in, and the reason after the last of them."""
    for count, token in enumerate(tokens, start=1):
        reason = stops.push(token)
        if reason is not None:
            return count, reason
    return len(tokens), None


@pytest.mark.parametrize(
    ("sampling", "tokens", "expected"),
    [
        ({}, [1, 2, EOS, 3], (3, FinishReason.EOS)),
        ({"ignore_eos": True}, [1, EOS, 3], (3, None)),
        ({"stop_token_ids": (2,)}, [1, 2, EOS], (2, FinishReason.STOP)),
        ({"stop_token_ids": (EOS,)}, [EOS], (1, FinishReason.EOS)),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, [EOS], (1, FinishReason.STOP)),
        ({"max_new_tokens": 1}, [EOS], (1, FinishReason.EOS)),
        ({"max_new_tokens": 2}, [1, 1], (2, FinishReason.LENGTH)),
        ({"stop": ("bc",)}, [1, 2, 3, 4], (3, FinishReason.STOP)),
        ({"stop": ("bc",), "max_new_tokens": 3}, [1, 2, 3], (3, FinishReason.STOP)),
        ({"stop": ("a",), "min_new_tokens": 3}, [1, 2, 3, 1], (4, FinishReason.STOP)),
        ({"stop_token_ids": (1,), "min_new_tokens": 3}, [1, 2, 1], (3, FinishReason.STOP)),
    ],
)
def test_stop_checker_ends_at_the_first_rule_that_applies(sampling, tokens, expected) -> None:
    assert push_all(checker(**sampling), tokens) == expected


def test_stop_checker_ends_when_the_context_is_full() -> None:
    assert push_all(checker(max_output=2), [1, 1]) == (2, FinishReason.CONTEXT)
    assert push_all(checker(max_output=2, max_new_tokens=2), [1, 1]) == (2, FinishReason.LENGTH)


def test_text_is_cut_before_the_first_stop_string() -> None:
    stops = checker(stop=("cd", "bcd"))
    push_all(stops, [1, 2, 3, 4])
    assert stops.text([1, 2, 3, 4]) == "a"


def test_text_keeps_a_stop_string_that_came_before_the_minimum() -> None:
    stops = checker(stop=("b",), min_new_tokens=3)
    push_all(stops, [1, 2, 3, 2])
    assert stops.text([1, 2, 3, 2]) == "abc"


@pytest.mark.parametrize(("sampling", "last"), [({}, EOS), ({"stop_token_ids": (3,)}, 3)])
def test_text_is_without_the_token_that_ended_it(sampling, last) -> None:
    stops = StopChecker(
        SamplingParams(**sampling), eos_ids=(EOS,), max_output=9, detokenize=lambda ids: "".join(map(str, ids))
    )
    push_all(stops, [1, 2, last])
    assert stops.text([1, 2, last]) == "12"


def test_text_of_a_used_up_budget_is_whole() -> None:
    stops = checker(max_new_tokens=2)
    push_all(stops, [1, 2])
    assert stops.text([1, 2]) == "ab"


def test_text_without_a_detokenizer_is_empty() -> None:
    stops = StopChecker(SamplingParams(), eos_ids=(), max_output=9, detokenize=None)
    assert stops.text([1, 2]) == ""


def test_ending_ids_are_those_that_end_this_request() -> None:
    assert checker(stop_token_ids=(7, 3)).ending_ids == (0, 3, 7)
    assert checker(stop_token_ids=(7,), ignore_eos=True).ending_ids == (7,)


def test_stop_string_is_found_across_the_bytes_of_a_character() -> None:
    strings = StopStrings(("né",), utf8)
    found = [strings.push(byte) for byte in "fin née".encode()]
    assert found.index(4) == len("fin né".encode()) - 1


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_are_found_at_the_first_token_that_completes_one(text: str, stops: list[str]) -> None:
    strings = StopStrings(stops, utf8)
    found = next((n for n, byte in enumerate(text.encode(), 1) if strings.push(byte) >= 0), None)
    expected = next((n for n in range(len(text) + 1) if any(s in text[:n] for s in stops)), None)
    assert found == expected


@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=12))
def test_stop_strings_keep_the_whole_text_of_any_language(text: str) -> None:
    text = text.replace("\ufffd", "")
    strings = StopStrings(("\x00 never",), utf8)
    for byte in text.encode():
        strings.push(byte)
    assert strings.text == text
