"""Texts in a file, so that several heads learn from what a target has written once; knows no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from experiments.training.heads.texts import Text
from specdec.errors import WorkloadError

NAME = "texts.safetensors"
TARGET = "target"
COLUMNS = ("lengths", "num_prompt", "max_tokens")
WHERE = "trainer.text.files"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who wrote texts: hash of the target's checkpoint, and the temperature."""

    target: str
    temperature: float


def save_texts(path: Path, texts: Sequence[Text], origin: Origin) -> None:
    """Write texts and their origin."""
    rows = [(len(text.tokens), text.num_prompt, text.max_tokens) for text in texts]
    columns = dict(zip(COLUMNS, torch.tensor(rows, dtype=torch.int32).T.contiguous(), strict=True))
    tokens = torch.tensor([token for text in texts for token in text.tokens], dtype=torch.int32)
    metadata = {TARGET: origin.target, "temperature": f"{origin.temperature:g}"}
    save_file({"tokens": tokens, **{name: column.clone() for name, column in columns.items()}}, path, metadata=metadata)


def load_texts(path: Path, *, target: str) -> tuple[Text, ...]:
    """Texts of a file; raises WorkloadError for one that cannot be read or that another target wrote."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            wrote = (file.metadata() or {}).get(TARGET)
            tensors = {name: file.get_tensor(name) for name in ("tokens", *COLUMNS)}
    except (SafetensorError, OSError) as error:
        raise WorkloadError(
            f"{path}: cannot read the texts ({error}); trainer=texts writes them (conf: {WHERE})"
        ) from None
    if wrote != target:
        raise WorkloadError(f"{path}: these texts are another target's, its checkpoint differs (conf: {WHERE})")
    tokens, start, texts = tensors["tokens"].tolist(), 0, []
    for length, num_prompt, max_tokens in zip(*(tensors[name].tolist() for name in COLUMNS), strict=True):
        texts.append(Text(tokens=tuple(tokens[start : start + length]), num_prompt=num_prompt, max_tokens=max_tokens))
        start += length
    return tuple(texts)
