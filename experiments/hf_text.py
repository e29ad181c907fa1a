"""HfText: what a checkpoint in transformers' layout, or a GGUF file, says about text; loads no model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.hf.gguf_llama import load_gguf_text
from backends.hf.load import gguf_file
from experiments.chat import ChatFormat, choose_format
from experiments.chat_template import ChatTemplate
from experiments.tokenizer import TextTokenizer
from specdec.errors import CheckpointError, ConfigError

TEMPLATE = "template"
TEMPLATE_FILE = "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class HfText:
    """Tokenizer and ids; the fields are those of ``experiments.targets.LoadedTarget``.

    template  the tokenizer's chat template, or None
    """

    tokenizer: TextTokenizer | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    template: ChatTemplate | None

    def chat_format(self, name: object) -> ChatFormat | ChatTemplate:
        """The format of that name; without a name the tokenizer's template, or ``plain``. Raises ConfigError."""
        if name == TEMPLATE or (name is None and self.template is not None):
            if self.template is None:
                raise ConfigError("the tokenizer has no chat template (conf: target.params.chat_format)")
            return self.template
        known = [TEMPLATE, *(each.value for each in ChatFormat)]
        if name is not None and name not in known:
            raise ConfigError(f"target.params.chat_format must be one of {', '.join(known)}, got {name!r}")
        return choose_format(name, (), lambda token: False)


def read_text(folder: Path) -> HfText:
    """Everything about text in a folder; raises CheckpointError for a file that cannot be read."""
    file = gguf_file(folder)
    return _of_folder(folder) if file is None else _of_gguf(file)


def _of_gguf(file: Path) -> HfText:
    text = load_gguf_text(file)
    tokenizer = TextTokenizer(text.tokenizer)
    ids = {"bos_token": text.bos_id, "eos_token": text.eos_id}
    spelled = {index: token for token, index in tokenizer.ids.items()}
    tokens = {name: spelled[index] for name, index in ids.items() if index in spelled}
    return HfText(
        tokenizer=tokenizer,
        eos_ids=() if text.eos_id is None else (text.eos_id,),
        bos_id=text.bos_id,
        add_bos=text.add_bos,
        template=None if text.chat_template is None else ChatTemplate(source=text.chat_template, tokens=tokens),
    )


def _of_folder(folder: Path) -> HfText:
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    tokenizer = TextTokenizer.load(folder)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    bos = generation.get("bos_token_id", config.get("bos_token_id"))
    return HfText(
        tokenizer=tokenizer,
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        bos_id=bos,
        add_bos=tokenizer is not None and bos is not None and tokenizer.begins_with(bos),
        template=_template(folder),
    )


def _template(folder: Path) -> ChatTemplate | None:
    """The template of a file of its own or of ``tokenizer_config.json``; of several the one named ``default``."""
    settings = _read_json(folder / "tokenizer_config.json")
    path = folder / TEMPLATE_FILE
    source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in SPECIAL_TOKENS:
        token = settings.get(name)
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            tokens[name] = content
    return ChatTemplate(source=source, tokens=tokens)


def _read_json(path: Path) -> dict:
    """The object in a JSON file; empty when there is no such file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); copy it again") from None
    return content if isinstance(content, dict) else {}
