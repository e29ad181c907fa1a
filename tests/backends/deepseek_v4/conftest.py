"""Small models for the tests of this folder, and the transformers model as their oracle."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.model import DeepseekV4Model

TINY = {
    "vocab_size": 67,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 0],
    "sliding_window": 32,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
    "num_hash_layers": 2,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 1.0,
    "max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
}


def randomise(module: nn.Module) -> None:
    """Fill every parameter and expert table so that nothing is zero, one or otherwise without effect."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fan = parameter.shape[-1] if parameter.dim() > 1 else 1
            draw = torch.randn(parameter.shape, generator=generator)
            around = 1.0 if "norm" in name and parameter.dim() == 1 else 0.0
            parameter.copy_(around + draw * (0.3 if parameter.dim() == 1 else fan**-0.5))
        for name, buffer in module.named_buffers():
            if name.endswith("tid2eid"):
                buffer.copy_(torch.rand(buffer.shape[0], 8, generator=generator).argsort(-1)[:, : buffer.shape[1]])
            elif name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)


@pytest.fixture
def tiny_json() -> dict[str, object]:
    """An official-spelling ``config.json`` of a few hundred thousand parameters with every kind of layer."""
    return dict(TINY)


@pytest.fixture(name="randomise")
def randomise_fixture() -> Callable[[nn.Module], None]:
    return randomise


@pytest.fixture
def tiny() -> Callable[..., DeepseekV4Config]:
    """Make the tiny configuration with some official keys changed."""

    def make(**changes: object) -> DeepseekV4Config:
        return DeepseekV4Config.from_dict({**TINY, **changes})

    return make


@pytest.fixture
def random_model() -> Callable[[DeepseekV4Config], DeepseekV4Model]:
    """Make a model with all parameters random."""

    def make(config: DeepseekV4Config) -> DeepseekV4Model:
        model = DeepseekV4Model(config)
        randomise(model)
        return model

    return make
