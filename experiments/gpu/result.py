"""Result files of measurements on a GPU: figures with command, commit and hardware."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from experiments.environment import environment_of
from experiments.fingerprint import inputs_of

RESULTS = Path(__file__).parents[1] / "results"
KEPT = ("git_commit", "code_hash", "processor", "platform", "python", "packages")


def save_result(name: str, command: str, figures: Mapping[str, object]) -> None:
    """Write ``experiments/results/NAME``."""
    environment = environment_of(
        device=torch.device("cuda"), dtype=torch.bfloat16, threads=1, seed=0, inputs=inputs_of(None, prompts="")
    )
    kept = {key: environment[key] for key in KEPT}
    content = {"command": command, "gpu": torch.cuda.get_device_name(), **kept, **figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS / name}")
