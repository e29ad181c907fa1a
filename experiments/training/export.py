"""From a trained state to a checkpoint folder in the official storage, and back into the models as stored."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from backends.deepseek_v4.weights.files import CONFIG, CheckpointFiles, read_json
from backends.deepseek_v4.weights.fill import fill_parameters
from backends.deepseek_v4.weights.writer import write_checkpoint
from experiments.training.architecture import Models

TOKENIZER = "tokenizer.json"
STATE = "state.safetensors"


def export_checkpoint(models: Models, raw: dict[str, object], tokenizer: Path, folder: Path) -> int:
    """Write ``folder`` (config, shards, index, tokenizer) from the models' present values; returns its bytes."""
    if folder.exists():
        shutil.rmtree(folder)
    write_checkpoint(folder, raw, models.parameters(), num_experts=models.config.n_routed_experts)
    shutil.copyfile(tokenizer, folder / TOKENIZER)
    return sum(path.stat().st_size for path in folder.iterdir())


def set_context(folder: Path, tokens: int) -> None:
    """Write the position limit that was found to hold into the folder's ``config.json``."""
    raw = read_json(folder / CONFIG)
    (folder / CONFIG).write_text(
        json.dumps({**raw, "max_position_embeddings": tokens}, indent=2) + "\n", encoding="utf-8"
    )


def load_stored(models: Models, folder: Path) -> None:
    """Fill the models from a checkpoint folder, in place: the values that inference will see."""
    fill_parameters(CheckpointFiles(folder), models.parameters(), models.config.n_routed_experts)


def save_state(models: Models, path: Path) -> None:
    """All parameters unrounded, under their official names with experts stacked."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in models.parameters().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def parameter_counts(models: Models) -> dict[str, int]:
    """Parameters of target and NextN layer."""

    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    return {"target": count(models.target), "nextn": count(models.nextn)}
