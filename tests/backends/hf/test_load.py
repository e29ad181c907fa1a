"""Loading a folder of transformers: what is refused."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backends.hf.load import load_model
from specdec.errors import CheckpointError


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"1 of 8 values of model\.norm\.weight are NaN or inf; copy or train"):
        load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
