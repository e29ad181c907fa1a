"""What is known of a head: how it was trained, kept beside its weights, and how it drafts; knows no training loop."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.targets import LoadedTarget
from experiments.training.heads import report
from experiments.training.heads.config import HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget
from experiments.training.heads.measure import measure, predict
from experiments.training.heads.texts import Text, verifier_config
from experiments.training.heads.trainees import Trainee
from experiments.training.loop import command_line
from specdec.api import DrafterConfig
from specdec.errors import CheckpointError
from specdec.request import Request, RequestOutput

TRAINING_FILE = "training.json"
"""Beside the weights, so that a card can be made later, too."""


def where_from(device: torch.device) -> dict[str, str]:
    """What figures were made by and on."""
    return {
        "command": command_line(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def keep_training(folder: Path, training: Mapping[str, Any]) -> None:
    """Write how a head was trained."""
    (folder / TRAINING_FILE).write_text(json.dumps(training, indent=1) + "\n", encoding="utf-8")


def training_of(folder: Path) -> dict[str, Any]:
    """How the head of a folder was trained; empty for one from elsewhere. Raises CheckpointError for a damaged file."""
    path = folder / TRAINING_FILE
    if not path.exists():
        return {}
    try:
        training = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); copy it again, or leave it out") from None
    if not isinstance(training, dict):
        raise CheckpointError(f"{path} must hold a JSON object; copy it again, or leave it out")
    return training


def acceptance_of(
    trainee: Trainee,
    target: FrozenTarget,
    drafter: DrafterConfig,
    measured_on: LoadedTarget,
    heldout: Sequence[Request],
    texts: Sequence[Text],
    config: HeadTrainerConfig,
    *,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Acceptance of a stored head, predicted from ``texts`` and measured by the engine on the prompts ``heldout``."""
    # First the engine, which refuses by name a head that does not fit.
    measured, outputs = measure(measured_on, drafter, heldout, config, dtype=dtype)
    predicted = predict(trainee, target, texts, config)
    return {
        "heldout": len(texts),
        "depths": report.depth_rows(predicted, measured),
        "tokens_per_step": {
            "predicted": predicted.expected.tokens_per_step,
            "measured": measured.tokens_per_step,
        },
        "rule": verifier_config(config).build().name,
        "temperature": config.text.temperature,
        "notes": _same_text(config, texts, outputs),
    }


def _same_text(config: HeadTrainerConfig, texts: Sequence[Text], outputs: Sequence[RequestOutput]) -> list[str]:
    """Under the greedy rule the head must not have changed a token."""
    if verifier_config(config).build().name != "greedy":
        return []
    plain = {text.tokens for text in texts}
    found = {(*output.prompt_ids, *output.output_ids) for output in outputs}
    missing = len(plain - found)
    return [f"lossless: {len(plain) - missing} of {len(plain)} held-out texts are those of plain decoding"]
