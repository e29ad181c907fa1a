"""Chat formats: turns of a conversation -> one prompt text; knows nothing of tokens or models.

``plain``        ``user: ...`` / ``assistant: ...`` lines, for models without chat tokens (the embedded one).
``deepseek_v4``  the documented DeepSeek-V4 text encoding, written here from its description: begin-of-sentence,
                 the system text, then user and assistant marks; the answer opens with ``<think>`` when the model
                 is asked to reason and with ``</think>`` when it is not. Tool calls are not encoded.

A transformers target has the template of its tokenizer instead, rendered in a sandbox. No code that lies in a
checkpoint folder is ever run to encode a prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from experiments.chat_template import ChatTemplate
from specdec.errors import ConfigError, WorkloadError

BEGIN = "<｜begin▁of▁sentence｜>"
END = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
ROLES = ("system", "user", "assistant")
V4_ARCHITECTURES = ("DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN")


class ChatFormat(Enum):
    """How a conversation becomes text."""

    PLAIN = "plain"
    DEEPSEEK_V4 = "deepseek_v4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn; ``role`` is system, user or assistant. Raises WorkloadError for another role."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise WorkloadError(f"role must be one of {', '.join(ROLES)}, got {self.role!r}")


def choose_format(name: str | None, architectures: Sequence[str], has_token: Callable[[str], bool]) -> ChatFormat:
    """The format of a checkpoint.

    An explicit ``name`` wins; otherwise a V4 architecture whose tokenizer has the V4 marks takes the V4 encoding
    and everything else takes ``plain``. Raises ConfigError for an unknown name.
    """
    if name is not None:
        known = [f.value for f in ChatFormat]
        if name not in known:
            raise ConfigError(f"chat format must be one of {', '.join(known)}, got {name!r}")
        return ChatFormat(name)
    v4 = any(a in V4_ARCHITECTURES for a in architectures)
    return ChatFormat.DEEPSEEK_V4 if v4 and has_token(USER) and has_token(ASSISTANT) else ChatFormat.PLAIN


def encode_chat(messages: Sequence[Message], chat_format: ChatFormat | ChatTemplate, *, thinking: bool = False) -> str:
    """Prompt text that ends where the assistant answers; ``thinking`` matters to the V4 encoding only."""
    if not messages:
        raise WorkloadError("a conversation needs at least one turn")
    if isinstance(chat_format, ChatTemplate):
        return chat_format.render([{"role": m.role, "content": m.content} for m in messages])
    if chat_format is ChatFormat.PLAIN:
        return "".join(f"{m.role}: {m.content}\n" for m in messages) + "assistant:"
    return BEGIN + "".join(_v4_turn(m) for m in messages) + ASSISTANT + (THINK if thinking else END_THINK)


def _v4_turn(message: Message) -> str:
    if message.role == "system":
        return message.content
    if message.role == "user":
        return USER + message.content
    return f"{ASSISTANT}{END_THINK}{message.content}{END}"
