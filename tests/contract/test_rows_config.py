"""Contract section 10c through configuration: rows 95, 102 and 105 to 108."""

import json

import pytest

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.weights.quantization import Quantization, read_quantization
from experiments.build import locate
from experiments.schemas import EngineSchema, TargetSchema
from specdec.engine_config import EngineConfig
from specdec.errors import CheckpointError, ConfigError

OFFICIAL = {
    "model_type": "deepseek_v4",
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 16,
    "o_groups": 2,
    "o_lora_rank": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "compress_ratios": [0, 4, 128, 0],
    "max_position_embeddings": 512,
    "quantization_config": Quantization().to_dict(),
    "expert_dtype": "fp4",
}


def test_row_95_the_target_option_names_a_loader_and_config_json_becomes_our_dataclass():
    assert locate(TargetSchema()._target_, "target._target_").__module__ == "experiments.deepseek_v4"
    config = DeepseekV4Config.from_dict(json.loads(json.dumps(OFFICIAL)))
    assert (config.hidden_size, config.compress_ratios) == (64, (0, 4, 128, 0))


def test_row_102_defaults_reach_the_engine_and_an_unknown_key_is_refused():
    assert EngineSchema().prefill_chunk == EngineConfig().prefill_chunk == 512
    with pytest.raises(TypeError, match="prefil_chunk"):
        EngineConfig(prefil_chunk=8)


def test_row_105_the_fp8_description_parses_and_is_written_back():
    quantization = read_quantization(OFFICIAL)
    assert quantization is not None
    assert quantization.activation_scheme == "dynamic"
    assert quantization.to_dict() == OFFICIAL["quantization_config"]


def test_row_106_the_storage_is_inferred_from_the_checkpoint():
    assert read_quantization(OFFICIAL).quant_method == "fp8"
    assert read_quantization({"model_type": "deepseek_v4"}) is None


@pytest.mark.parametrize(
    ("field", "value"), [("quant_method", "mxfp4"), ("weight_block_size", [64, 64]), ("scale_fmt", "fp32")]
)
def test_row_107_a_storage_that_does_not_match_is_named(field, value):
    raw = {**OFFICIAL, "quantization_config": {**Quantization().to_dict(), field: value}}
    with pytest.raises(CheckpointError, match=f"{field}.*does not match"):
        read_quantization(raw)


def test_row_107_an_unknown_expert_type_is_named():
    with pytest.raises(CheckpointError, match="expert_dtype.*'int3'"):
        read_quantization({**OFFICIAL, "expert_dtype": "int3"})


def test_row_108_unset_sizes_are_null_so_that_an_explicit_one_survives():
    assert EngineConfig().num_pages is None
    assert EngineConfig(num_pages=64).num_pages == 64
    with pytest.raises(ConfigError, match="engine.num_pages"):
        EngineConfig(num_pages=0)
