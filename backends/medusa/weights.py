"""Load and save Medusa heads as a folder: ``config.json`` and safetensors with the public parameter names.

From the documentation of Medusa and text-generation-inference, untested against a live engine. Pickled files
(``medusa_lm_head.pt``) are refused: loading one can run code.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from backends.finite import check_finite
from backends.medusa.model import MedusaConfig, MedusaModel
from specdec.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "medusa_lm_head.safetensors"
NOT_FINITE = "train the heads again with a lower learning rate, or copy them again (conf: drafter.checkpoint)"


def save_medusa(model: MedusaModel, folder: Path, *, dtype: torch.dtype | None = None) -> Path:
    """Write ``config.json`` and the weights (as ``dtype``); returns the weights' file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    tensors = {name: value.to(dtype or value.dtype).contiguous() for name, value in tensors.items()}
    (folder / CONFIG).write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder / WEIGHTS


def load_medusa(folder: Path, *, head: torch.Tensor, device: torch.device, dtype: torch.dtype) -> MedusaModel:
    """The heads of a folder for a target whose own head is ``head`` [V, D]; raises CheckpointError."""
    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) != 1:
        raise CheckpointError(
            f"{folder} has {len(paths)} safetensors files, Medusa heads are one; pickled heads do not load "
            "(conf: drafter.checkpoint)"
        )
    try:
        stored = load_file(paths[0])
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{paths[0]} cannot be read ({error}); copy it again") from None
    vocab_size, hidden_size = head.shape
    config = _config_of(stored, vocab_size=vocab_size, hidden_size=hidden_size, folder=folder)
    model = MedusaModel(config).to(device, dtype).eval()
    for name, value in model.state_dict().items():
        if name not in stored:
            raise CheckpointError(f"{folder} has no {name} (conf: drafter.checkpoint)")
        if stored[name].shape != value.shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(stored[name].shape)}, for this target it is {list(value.shape)} "
                "(conf: drafter.checkpoint)"
            )
        check_finite(stored[name], name=name, file=paths[0], advice=NOT_FINITE)
        value.copy_(stored[name])
    return model.requires_grad_(False)


def _config_of(stored: dict[str, torch.Tensor], *, vocab_size: int, hidden_size: int, folder: Path) -> MedusaConfig:
    """Numbers of heads and blocks, read from the names: files in use disagree about where they write them."""
    places = [name.split(".") for name in stored]
    if not all(len(place) >= 3 and place[0].isdecimal() and place[1].isdecimal() for place in places) or not places:
        raise CheckpointError(f"{folder} has {next(iter(stored), 'nothing')}, which is no part of Medusa heads")
    num_heads = 1 + max(int(place[0]) for place in places)
    num_blocks = max(int(place[1]) for place in places)
    return MedusaConfig(vocab_size=vocab_size, hidden_size=hidden_size, num_heads=num_heads, num_blocks=num_blocks)
