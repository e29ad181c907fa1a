"""DeepseekV4Config: both spellings mean the same, the official sizes hold, and mistakes are named."""

import copy

import pytest

from backends.deepseek_v4.config import DeepseekV4Config
from specdec.errors import ConfigError

transformers = pytest.importorskip("transformers")

SHARED = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_lora_rank": 1024,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
}
FLASH = {
    **SHARED,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 1.5,
    "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}
PRO = {
    **SHARED,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "routed_scaling_factor": 2.5,
    "index_topk": 1024,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}


@pytest.mark.parametrize(
    ("raw", "window_only", "csa", "hca"),
    [(FLASH, (0, 1), range(2, 43, 2), range(3, 42, 2)), (PRO, (), range(2, 61, 2), (0, *range(1, 60, 2)))],
    ids=["flash", "pro"],
)
def test_official_configurations_have_the_published_layers(raw, window_only, csa, hca):
    config = DeepseekV4Config.from_dict(raw)
    layers = range(config.num_hidden_layers)
    kinds = {ratio: tuple(i for i in layers if config.ratio(i) == ratio) for ratio in (0, 4, 128)}
    assert kinds == {0: tuple(window_only), 4: tuple(csa), 128: tuple(hca)}
    assert config.nextn_layer_ids == (raw["num_hidden_layers"],)
    assert config.ratio(config.nextn_layer_ids[0]) == 0
    assert [config.is_hash_routed(layer) for layer in range(5)] == [True, True, True, False, False]


def test_official_values_are_read_as_they_stand():
    config = DeepseekV4Config.from_dict(PRO)
    assert (config.hidden_size, config.q_lora_rank, config.o_groups, config.index_topk) == (7168, 1536, 16, 1024)
    assert (config.routed_scaling_factor, config.swiglu_limit, config.eos_token_ids) == (2.5, 10.0, (1,))
    assert config.yarn is not None and config.yarn.factor == 16 and config.yarn.original_positions == 65536


@pytest.mark.parametrize("raw", [FLASH, PRO], ids=["flash", "pro"])
def test_the_spelling_of_transformers_means_the_same(raw, tmp_path):
    without_unknown = {k: v for k, v in raw.items() if k not in ("quantization_config", "expert_dtype")}
    spelled = transformers.DeepseekV4Config(**without_unknown).to_dict()
    spelled.pop("qk_rope_head_dim")
    assert "compress_ratios" not in spelled and "num_hash_layers" not in spelled
    assert DeepseekV4Config.from_dict(spelled) == DeepseekV4Config.from_dict(raw)


def test_a_list_of_target_layers_only_gets_a_window_only_nextn_layer():
    raw = {**FLASH, "compress_ratios": FLASH["compress_ratios"][:-1]}
    assert DeepseekV4Config.from_dict(raw) == DeepseekV4Config.from_dict(FLASH)


def test_a_config_without_nextn_keeps_target_layers_only():
    config = DeepseekV4Config.from_dict({**FLASH, "num_nextn_predict_layers": 0})
    assert len(config.compress_ratios) == 43 and config.nextn_layer_ids == ()


def test_reading_does_not_modify_what_it_reads():
    raw = copy.deepcopy(FLASH)
    DeepseekV4Config.from_dict(raw)
    assert raw == FLASH


def test_several_ends_of_text_are_kept():
    assert DeepseekV4Config.from_dict({**FLASH, "eos_token_id": [1, 5]}).eos_token_ids == (1, 5)


def test_clamp_is_off_when_absent_or_zero():
    raw = {key: value for key, value in FLASH.items() if key != "swiglu_limit"}
    assert DeepseekV4Config.from_dict(raw).swiglu_limit == 0.0
    assert DeepseekV4Config.from_dict({**raw, "swiglu_limit": None}).swiglu_limit == 0.0


MISTAKES = {
    "ratio": ({"compress_ratios": [0, 8, *[4] * 42]}, "compress_ratio=8"),
    "rate": (
        {"layer_types": ["compressed_sparse_attention"] * 43, "compress_rates": {"compressed_sparse_attention": 8}},
        "compress_ratio=8",
    ),
    "layer type": ({"layer_types": ["full_attention"] * 43}, "layer_types.*full_attention"),
    "short list": ({"compress_ratios": [0, 4]}, "compress_ratios.*43.*got 2"),
    "ratios of text": ({"compress_ratios": ["4"] * 44}, "compress_ratio='4'"),
    "ratios no list": ({"compress_ratios": 4}, "compress_ratios must be a list"),
    "layers of text": ({"num_hidden_layers": "43"}, "num_hidden_layers must be an integer"),
    "scaling of text": ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
    "no ratios": ({"compress_ratios": None}, "compress_ratios.*missing"),
    "nextn ratio": ({"compress_ratios": [*FLASH["compress_ratios"][:-1], 4]}, "must be 0 for the NextN layer, got 4"),
    "hash layers in the middle": ({"mlp_layer_types": ["moe", "hash_moe", *["moe"] * 41]}, "mlp_layer_types"),
    "model type": ({"model_type": "deepseek_v3"}, "model_type must be 'deepseek_v4', got 'deepseek_v3'"),
    "scoring": ({"scoring_func": "sigmoid"}, "scoring_func must be 'sqrtsoftplus', got 'sigmoid'"),
    "heads": ({"num_attention_heads": 60}, "o_groups must be a divisor of num_attention_heads=60, got 8"),
    "odd rope": ({"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even, got 63"),
    "zero window": ({"sliding_window": 0}, "sliding_window must be an integer of at least 1, got 0"),
    "text": ({"hidden_size": "4096"}, "hidden_size must be an integer"),
    "experts": ({"num_experts_per_tok": 300}, "num_experts_per_tok must be at most n_routed_experts=256"),
    "end of text": ({"eos_token_id": "</s>"}, "eos_token_id must be an integer of at least 0, got '</s>'"),
    "one end of text": ({"eos_token_id": [1, None]}, "eos_token_id must be an integer of at least 0, got None"),
    "beginning of text": ({"bos_token_id": "<s>"}, "bos_token_id must be an integer of at least 0, got '<s>'"),
    "missing": ({"q_lora_rank": None}, "q_lora_rank missing"),
    "rope kind": ({"rope_scaling": {"type": "linear", "factor": 2}}, "yarn"),
    "rope magnitude": ({"rope_scaling": {**SHARED["rope_scaling"], "attention_factor": 1.2}}, "attention_factor 1"),
    "yarn without factor": ({"rope_scaling": {"type": "yarn"}}, "factor"),
    "several nextn layers": ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
    "dspark": ({"dspark_block_size": 5}, "DSpark.*dspark_block_size"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_by_name(name):
    changes, message = MISTAKES[name]
    with pytest.raises(ConfigError, match=message):
        DeepseekV4Config.from_dict({**FLASH, **changes})
