"""Loading: a checkpoint folder in transformers' layout, or a GGUF file -> a CausalModel; runs no code of theirs."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from backends.finite import check_finite
from backends.hf.few_rows import use_few_rows
from backends.hf.gguf_llama import load_gguf
from backends.hf.model import CausalModel
from backends.hf.rollback import check_family, check_rollback
from specdec.errors import CheckpointError

CONFIG_FILE = "config.json"
GGUF_PATTERN = "*.gguf"
NOT_FINITE = "copy or train the model again (conf: target.checkpoint, drafter.checkpoint)"


def gguf_file(folder: Path) -> Path | None:
    """The GGUF file of a folder that has no transformers checkpoint; None otherwise."""
    if (folder / CONFIG_FILE).exists():
        return None
    files = sorted(folder.glob(GGUF_PATTERN))
    if len(files) > 1:
        raise CheckpointError(f"{folder} has {len(files)} GGUF files ({', '.join(f.name for f in files)}); keep one")
    return files[0] if files else None


def load_model(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_context: int | None = None,
    recompute: bool = False,
) -> CausalModel:
    """The model of a folder, checked.

    recompute  the model will run every text whole, so its cache need not go back

    Raises CheckpointError for a folder that cannot be loaded, UnsupportedError for a model that cannot be a target.
    """
    file = gguf_file(folder)
    model = _pretrained(folder, dtype) if file is None else load_gguf(file, dtype=dtype)
    model = model.to(device)
    for name, value in model.named_parameters():
        check_finite(value, name=name, file=file or folder, advice=NOT_FINITE)
    use_few_rows(model)
    causal = CausalModel(model, max_context=max_context, lean=not recompute)
    check_family(causal)
    if not recompute:
        check_rollback(causal)
    return causal


def _pretrained(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    path = folder / CONFIG_FILE
    if not path.exists():
        raise CheckpointError(f"{folder} has neither {CONFIG_FILE} nor a GGUF file (conf: target.checkpoint)")
    # Its bars would be drawn through whatever shows progress here.
    logging.disable_progress_bar()
    try:
        architectures = json.loads(path.read_text(encoding="utf-8")).get("architectures") or ["a model"]
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (ImportError, OSError, ValueError, KeyError) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: transformers cannot load {architectures[0]} ({what})") from None
