"""A small target and NextN module with every parameter random."""

import pytest
import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.model import DeepseekV4Model
from backends.nextn.model import NextNModel

WINDOW = 6


def small_config(**changes: object) -> DeepseekV4Config:
    fields = {
        "vocab_size": 31,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 12,
        "o_groups": 2,
        "o_lora_rank": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "compress_ratios": (0, 0, 0),
        "sliding_window": WINDOW,
        "index_head_dim": 8,
        **changes,
    }
    return DeepseekV4Config(**fields)


@pytest.fixture
def make_pair():
    """Make a target and its NextN module from configuration changes."""

    def make(**changes: object) -> tuple[DeepseekV4Model, NextNModel]:
        config = small_config(**changes)
        pair = DeepseekV4Model(config), NextNModel(config)
        with torch.no_grad():
            for model in pair:
                for parameter in model.parameters():
                    std = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
                    parameter.copy_(torch.randn_like(parameter) * std)
        return pair

    return make
