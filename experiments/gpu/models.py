"""Random models of V4-Flash's width for measurements on a GPU; no checkpoint is needed to time a kernel."""

from collections.abc import Mapping

import torch
from torch import nn

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.model import DeepseekV4Model, stays_float32
from backends.nextn.model import NextNModel

# Four layers of V4-Flash (window, CSA, HCA, CSA) and its NextN layer, with fewer experts and ids.
FLASH_WIDTH: Mapping[str, object] = {
    "model_type": "deepseek_v4",
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "compress_ratios": [0, 4, 128, 4, 0],
}


def build(raw: Mapping[str, object], device: torch.device, dtype: torch.dtype) -> tuple[DeepseekV4Model, NextNModel]:
    """Target and NextN layer of a configuration with random weights of unit-scale outputs, in ``dtype``."""
    config = DeepseekV4Config.from_dict(raw)
    generator = torch.Generator(device=device).manual_seed(0)
    models = []
    for make in (DeepseekV4Model, NextNModel):
        with torch.device("meta"):
            model = make(config)
        models.append(materialise(model, config, device, dtype, generator))
    return models[0], models[1]


@torch.no_grad()
def materialise(
    model: nn.Module, config: DeepseekV4Config, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> nn.Module:
    """Give a model on the meta device random parameters on ``device``; every value is one of bf16."""
    for name, parameter in list(model.named_parameters()):
        values = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
        if parameter.dim() > 1:
            values.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
        else:
            values.fill_(1.0 if name.endswith(("norm.weight", "_scale")) else 0.0)
        owner, _, leaf = name.rpartition(".")
        kept = torch.float32 if stays_float32(name) else dtype
        new = nn.Parameter(values.to(kept), requires_grad=False)
        setattr(model.get_submodule(owner) if owner else model, leaf, new)
    for name, buffer in list(model.named_buffers()):
        if name.endswith("tid2eid"):
            table = torch.rand(buffer.shape[0], config.n_routed_experts, generator=generator, device=device)
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, table.argsort(dim=1)[:, : buffer.shape[1]].contiguous())
    for module in model.modules():
        if not list(module.children()) and not list(module.parameters(recurse=False)):
            module.to_empty(device=device)
    return model.eval()
