"""The model that a run trains: its ``config.json``, and target and NextN layer with their first values."""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.initialise import initialise
from backends.deepseek_v4.model import DeepseekV4Model
from backends.nextn.model import NextNModel
from experiments.training.config import ModelSettings

_COPIED = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_hash_layers",
    "routed_scaling_factor",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "hc_sinkhorn_iters",
)
ORIGINAL_POSITIONS = 65536


def official_config(settings: ModelSettings, *, context: int, bos: int, eos: int) -> dict[str, object]:
    """The ``config.json`` of the model in the official spelling; ``context`` is its position limit in tokens."""
    scaling = {
        "type": "yarn",
        "factor": settings.yarn_factor,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": ORIGINAL_POSITIONS,
    }
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **{name: getattr(settings, name) for name in _COPIED},
        "num_hidden_layers": len(settings.compress_ratios),
        "num_nextn_predict_layers": 1,
        "compress_ratios": [*settings.compress_ratios, 0],
        "num_key_value_heads": 1,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": scaling if settings.yarn_factor > 1 else None,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }


@dataclass(frozen=True, kw_only=True)
class Models:
    """A target and its NextN layer, which borrows the target's embedding and head."""

    target: DeepseekV4Model
    nextn: NextNModel

    @property
    def config(self) -> DeepseekV4Config:
        return self.target.config

    def parameters(self) -> dict[str, torch.Tensor]:
        """Every stored tensor under its official name: parameters and hash tables, shared storage."""
        return self.target.state_dict() | self.nextn.state_dict()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that a gradient moves."""
        named = dict(self.target.named_parameters()) | dict(self.nextn.named_parameters())
        return {name: parameter for name, parameter in named.items() if parameter.requires_grad}


def build_models(raw: dict[str, object], *, seed: int, device: str) -> Models:
    """Freshly initialised float32 models; the first values depend on the seed alone, not on the device."""
    config = DeepseekV4Config.from_dict(raw)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    models = Models(target=DeepseekV4Model(config), nextn=NextNModel(config))
    initialise(models.target, config, generator)
    initialise(models.nextn, config, generator)
    models.target.to(device)
    models.nextn.to(device)
    return models
