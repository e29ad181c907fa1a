"""Contract section 10c, rows 99 to 101: chat encoding and its selection, without running foreign code."""

import pytest

from experiments.chat import ChatFormat, Message, choose_format, encode_chat
from specdec.errors import ConfigError, WorkloadError

TURNS = [Message(role="system", content="S"), Message(role="user", content="Q")]


def test_row_99_v4_encoding_marks_turns_and_the_thinking_mode():
    chat = encode_chat(TURNS, ChatFormat.DEEPSEEK_V4)
    assert chat == "<｜begin▁of▁sentence｜>S<｜User｜>Q<｜Assistant｜></think>"
    assert encode_chat(TURNS, ChatFormat.DEEPSEEK_V4, thinking=True).endswith("<｜Assistant｜><think>")


def test_row_99_v4_encoding_closes_earlier_answers():
    turns = [*TURNS, Message(role="assistant", content="A"), Message(role="user", content="R")]
    text = encode_chat(turns, ChatFormat.DEEPSEEK_V4)
    assert "<｜Assistant｜></think>A<｜end▁of▁sentence｜><｜User｜>R<｜Assistant｜>" in text


@pytest.mark.parametrize(
    ("architectures", "tokens", "expected"),
    [
        (["DeepseekV4ForCausalLM"], {"<｜User｜>", "<｜Assistant｜>"}, ChatFormat.DEEPSEEK_V4),
        (["DeepseekV4ForCausalLM"], {"<|user|>"}, ChatFormat.PLAIN),
        (["LlamaForCausalLM"], {"<｜User｜>", "<｜Assistant｜>"}, ChatFormat.PLAIN),
        ([], set(), ChatFormat.PLAIN),
    ],
)
def test_row_100_the_architecture_and_its_tokens_choose_the_format(architectures, tokens, expected):
    assert choose_format(None, architectures, tokens.__contains__) is expected


def test_row_101_an_explicit_format_wins_and_an_unknown_one_is_named():
    assert choose_format("plain", ["DeepseekV4ForCausalLM"], lambda _: True) is ChatFormat.PLAIN
    with pytest.raises(ConfigError, match="'alpaca'"):
        choose_format("alpaca", [], lambda _: True)


def test_plain_format_is_lines_and_ends_at_the_answer():
    assert encode_chat(TURNS, ChatFormat.PLAIN) == "system: S\nuser: Q\nassistant:"


def test_empty_conversations_and_unknown_roles_are_refused():
    with pytest.raises(WorkloadError, match="at least one turn"):
        encode_chat([], ChatFormat.PLAIN)
    with pytest.raises(WorkloadError, match="'tool'"):
        Message(role="tool", content="")
