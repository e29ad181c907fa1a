"""The device that a training run asks for, made sure of before any text is read."""

import torch

from experiments.training.config import WHERE
from specdec.errors import ConfigError


def require_device(name: str) -> torch.device:
    """The device ``name`` (cpu, cuda or cuda:N); raises ConfigError when this machine does not have it."""
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        offered = f"cpu, cuda or cuda:0 to cuda:{count - 1}" if count else "cpu (no GPU was found)"
        raise ConfigError(f"device must be {offered}, got {name!r} (conf: {WHERE}.device)")
    return device
