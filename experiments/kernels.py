"""Which implementation of a target's operators a run uses, decided before any model is loaded."""

from importlib.util import find_spec

import torch

from backends.vendor import flash_mla
from specdec.errors import ConfigError, UnsupportedError

REFERENCE, TRITON, FLASH_MLA = "reference", "triton", "flash_mla"


def choose_kernels(wanted: str | None, *, device: torch.device, cache_dtype: str) -> str:
    """``engine.kernels`` with its default resolved.

    The default is ``triton`` on a GPU and where Triton is, else ``reference``: FlashMLA plans every step anew, which
    costs more than it gains below about 32 tokens a pass. Raises ConfigError when what is asked for cannot run,
    naming what it lacks.
    """
    problems = {kernels: _problem(kernels, device, cache_dtype) for kernels in (TRITON, FLASH_MLA, REFERENCE)}
    if wanted is None:
        return next(kernels for kernels, problem in problems.items() if problem is None)
    if problems[wanted] is not None:
        possible = ", ".join(kernels for kernels, problem in problems.items() if problem is None)
        raise ConfigError(f"engine.kernels={wanted} cannot run: {problems[wanted]} (possible here: {possible})")
    return wanted


def _problem(kernels: str, device: torch.device, cache_dtype: str) -> str | None:
    """What an implementation lacks, or None."""
    if kernels == REFERENCE:
        return None
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, and the device is {device.type} (conf: engine.device)"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if kernels == TRITON:
        return None
    if cache_dtype != "fp8":
        return f"FlashMLA reads fp8 rows, and target.cache_dtype is {cache_dtype}"
    try:
        flash_mla.load()
    except UnsupportedError as error:
        return str(error)
    return None
