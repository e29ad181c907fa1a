"""ChatTemplate: the Jinja template of a tokenizer, rendered in a sandbox; knows nothing of tokens or models.

A template comes with a checkpoint, so it is not trusted: the sandbox lets it neither change what it is given nor reach
anything else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from specdec.errors import ConfigError, WorkloadError


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A template and the special tokens that it may name, ``bos_token`` for example."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text that ends where the assistant answers.

        messages  role and content of each turn

        Raises ConfigError without jinja2, WorkloadError for turns that the template refuses.
        """
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise ConfigError(
                "turns need the tokenizer's chat template, and jinja2 is not installed: pip install jinja2 (extra hf), "
                "or set target.params.chat_format=plain"
            ) from None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            template = environment.from_string(self.source)
            return template.render(messages=list(messages), add_generation_prompt=True, **self.tokens)
        except TemplateError as error:
            raise WorkloadError(f"the chat template of the tokenizer refuses these turns: {error}") from None


def _refuse(message: str) -> None:
    raise WorkloadError(f"the chat template of the tokenizer refuses these turns: {message}")
