"""Load and save an EAGLE-3 head as a folder in the common layout: ``config.json`` and safetensors.

Names: ``fc.weight``, ``midlayer.{self_attn.{q,k,v,o}_proj,mlp.{gate,up,down}_proj,input_layernorm,hidden_norm,
post_attention_layernorm}.weight``, ``norm.weight``, ``lm_head.weight``, ``d2t``, ``t2d`` and, if the head has an
embedding of its own, ``embed_tokens.weight``. From the documentation of SpecForge, SGLang, vLLM and speculators,
untested against a live engine. ``layers.0.`` for ``midlayer.`` and a leading ``model.`` are understood too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from backends.eagle3.config import Eagle3Config, config_from_dict
from backends.eagle3.model import Eagle3Model
from backends.finite import check_finite
from specdec.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
EMBEDDING, HEAD, OFFSETS, MEMBERS = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
NOT_FINITE = "train the head again with a lower learning rate, or copy it again (conf: drafter.checkpoint)"
OTHER_NAMES = (("model.", ""), ("layers.0.", "midlayer."))


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPart:
    """What a head is checked against and borrows.

    embedding   [V, D] of the target
    head        [V, D] of the target, for a checkpoint that brings none
    num_layers  of the target
    """

    embedding: torch.Tensor
    head: torch.Tensor
    num_layers: int


def load_eagle3(folder: Path, target: TargetPart, *, device: torch.device, dtype: torch.dtype) -> Eagle3Model:
    """The head of a folder, checked against its target; raises CheckpointError, ConfigError or UnsupportedError."""
    config = config_from_dict(_read_config(folder), num_target_layers=target.num_layers)
    check_target(config, target)
    stored = dict(_tensors(folder))
    own = EMBEDDING in stored
    embedding = stored.pop(EMBEDDING).to(device, dtype) if own else target.embedding
    if embedding.shape[-1] != config.hidden_size:
        raise CheckpointError(
            f"{folder} brings no embed_tokens.weight, and the target's embedding is {embedding.shape[-1]} wide where "
            f"the head needs {config.hidden_size} (conf: drafter.checkpoint)"
        )
    if HEAD not in stored and not config.is_reduced:
        stored[HEAD] = target.head
    model = Eagle3Model(config, borrowed(embedding), own_embedding=own).to(device, dtype).eval()
    _fill(model, stored, folder)
    return model.requires_grad_(False)


def borrowed(embedding: torch.Tensor) -> nn.Embedding:
    """An embedding that shares storage with a weight of the target and is not trained."""
    return nn.Embedding.from_pretrained(embedding.detach(), freeze=True)


def save_eagle3(model: Eagle3Model, folder: Path, *, dtype: torch.dtype | None = None) -> Path:
    """Write ``config.json`` and the weights (as ``dtype``); returns the weights' file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, value in model.state_dict().items():
        if name == EMBEDDING and not model.own_embedding:
            continue
        if name in (OFFSETS, MEMBERS) and not model.config.is_reduced:
            continue
        value = value.detach().cpu()
        tensors[name] = (value.to(dtype) if dtype is not None and value.is_floating_point() else value).contiguous()
    name = str(dtype or model.fc.weight.dtype).removeprefix("torch.")
    config = {**model.config.to_dict(), "torch_dtype": name}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder / WEIGHTS


def check_target(config: Eagle3Config, target: TargetPart) -> None:
    """Raise CheckpointError for a head of another vocabulary or of layers that the target does not have."""
    vocab_size = target.head.shape[0]
    if config.vocab_size != vocab_size:
        raise CheckpointError(
            f"the EAGLE-3 head is for a vocabulary of {config.vocab_size} tokens, the target has {vocab_size} "
            "(conf: drafter.checkpoint)"
        )
    missing = [layer for layer in config.hidden_layers if layer >= target.num_layers]
    if missing:
        raise CheckpointError(
            f"the EAGLE-3 head reads layer {missing[0]}, the target has layers 0..{target.num_layers - 1} "
            "(conf: drafter.checkpoint)"
        )


def _fill(model: Eagle3Model, stored: dict[str, torch.Tensor], folder: Path) -> None:
    wanted = {name: value for name, value in model.state_dict().items() if name != EMBEDDING}
    optional = set() if model.config.is_reduced else {OFFSETS, MEMBERS}
    missing, extra = sorted(set(wanted) - set(stored) - optional), sorted(set(stored) - set(wanted))
    if missing or extra:
        what = f"has no {missing[0]}" if missing else f"has {extra[0]}, which is no part of an EAGLE-3 head"
        raise CheckpointError(f"{folder} {what} (conf: drafter.checkpoint)")
    for name, value in stored.items():
        if value.shape != wanted[name].shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(value.shape)}, config.json says {list(wanted[name].shape)}"
            )
        wanted[name].copy_(value)
    if not model.config.is_reduced:
        return
    ids_X = model.target_ids_X
    inside = bool((ids_X >= 0).all()) and bool((ids_X < model.config.vocab_size).all())
    if not inside or not torch.equal(model.t2d.nonzero().flatten(), ids_X.sort().values):
        raise CheckpointError(f"{folder}: d2t and t2d name different tokens; the file is damaged or mixed up")


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} has no safetensors file; weights load from safetensors only")
    for path in paths:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for key in file.keys():
                    value = file.get_tensor(key)
                    check_finite(value, name=key, file=path, advice=NOT_FINITE)
                    yield _our_name(key), value
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); copy it again") from None


def _our_name(key: str) -> str:
    for old, new in OTHER_NAMES:
        if key.startswith(old):
            key = new + key.removeprefix(old)
    return key


def _read_config(folder: Path) -> dict:
    path = folder / CONFIG
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; an EAGLE-3 head needs it (conf: drafter.checkpoint)")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); copy it again") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return raw
