"""The environment of a run: versions, device, code and inputs; what must agree before two runs are compared."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from experiments.commit import commit_of
from experiments.fingerprint import Inputs
from specdec import __version__

PACKAGES = ("torch", "numpy", "hydra-core", "tokenizers", "safetensors", "transformers", "triton")
# Two runs of one code hash are comparable whatever commit they were started from.
NOT_COMPARED = ("git_commit",)


def use_threads(threads: int | None) -> int:
    """Let torch use this many threads, by default one; returns the number.

    A pass of a few tokens is many small products: a second thread makes them slower (by a quarter for a verify pass
    of four on a quiet machine with two cores), and tenfold slower when the other core is busy.
    """
    count = threads or 1
    torch.set_num_threads(count)
    return count


def environment_of(
    *, device: torch.device, dtype: torch.dtype, threads: int, seed: int, inputs: Inputs
) -> dict[str, object]:
    """Content of ``env.json``."""
    return {
        "specdec": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
        "seed": seed,
        "checkpoint_hash": inputs.checkpoint,
        "prompt_set_hash": inputs.prompts,
        "code_hash": inputs.code,
        "git_commit": commit_of(),
    }


def disagreement(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str | None:
    """The first entry in which two environments differ, in words; None when the runs can be compared."""
    for name in compared({**ours, **theirs}):
        if ours.get(name) != theirs.get(name):
            return f"{name} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
    return None


def compared(environment: Mapping[str, object]) -> dict[str, object]:
    """The entries that must agree before two runs are compared."""
    return {name: value for name, value in environment.items() if name not in NOT_COMPARED}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
