"""Load a DeepSeek-V4 checkpoint folder: the target model and, if the folder holds one, its NextN layer."""

from dataclasses import dataclass
from pathlib import Path

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.model import DeepseekV4Model, cast_parameters
from backends.deepseek_v4.weights.files import CheckpointFiles
from backends.deepseek_v4.weights.fill import checkpoint_has_nextn, fill_parameters
from backends.deepseek_v4.weights.quantization import read_quantization
from backends.nextn.model import NextNModel


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModels:
    """Models in memory; ``nextn`` is None for a checkpoint without a NextN layer.

    architectures  class names that ``config.json`` gives; may be empty
    """

    config: DeepseekV4Config
    architectures: tuple[str, ...]
    target: DeepseekV4Model
    nextn: NextNModel | None


def load_checkpoint(folder: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedModels:
    """Read ``folder`` (official or transformers spelling) into models on ``device`` that compute in ``dtype``.

    Quantised weights are dequantised; parameters that compute in float32 stay so. Every key of the folder is used
    exactly once and every parameter is filled; raises CheckpointError or ConfigError otherwise.
    """
    files = CheckpointFiles(folder)
    read_quantization(files.config)
    has_nextn = checkpoint_has_nextn(files)
    config = DeepseekV4Config.from_dict(files.config)
    # Not on the meta device: its first use imports seconds of torch; the first values cost a tenth of one here.
    with torch.device(device):
        target = DeepseekV4Model(config)
        nextn = NextNModel(config) if has_nextn else None
    modules = [target] if nextn is None else [target, nextn]
    parameters: dict[str, torch.Tensor] = {}
    for module in modules:
        cast_parameters(module, dtype)
        module.requires_grad_(False).eval()
        parameters |= module.state_dict()
    fill_parameters(files, parameters, config.n_routed_experts)
    architectures = tuple(files.config.get("architectures") or ())
    return LoadedModels(config=config, architectures=architectures, target=target, nextn=nextn)
