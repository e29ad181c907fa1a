"""Result files of measurements: figures with command, commit and hardware; knows nothing of what was measured."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from experiments.environment import environment_of
from experiments.fingerprint import inputs_of

RESULTS = Path(__file__).parent / "results"
KEPT = ("git_commit", "code_hash", "processor", "platform", "python", "packages")
KEPT_ON_CPU = ("checkpoint_hash", "threads", "dtype")


def save_gpu_result(name: str, command: str, figures: Mapping[str, object]) -> None:
    """Write ``experiments/results/NAME`` of a measurement of the first GPU, without a checkpoint."""
    environment = environment_of(
        device=torch.device("cuda"), dtype=torch.bfloat16, threads=1, seed=0, inputs=inputs_of(None, prompts="")
    )
    kept = {key: environment[key] for key in KEPT}
    _write(name, {"command": command, "gpu": torch.cuda.get_device_name(), **kept, **figures})


def save_cpu_result(name: str, command: str, figures: Mapping[str, object], *, folder: Path) -> None:
    """Write ``experiments/results/NAME`` of a measurement of the checkpoint ``folder`` on one thread, in fp32."""
    environment = environment_of(
        device=torch.device("cpu"), dtype=torch.float32, threads=1, seed=0, inputs=inputs_of(folder, prompts="")
    )
    kept = {key: environment[key] for key in (*KEPT, *KEPT_ON_CPU)}
    _write(name, {"command": command, **kept, **figures})


def _write(name: str, content: Mapping[str, object]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS / name}")
