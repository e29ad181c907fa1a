"""Models whose cache cannot go back are refused by name when they are loaded; models that can, pass the trial."""

import pytest
from transformers import AutoModelForCausalLM, Phi3Config, T5Config, T5ForConditionalGeneration

from backends.hf.few_rows import use_few_rows
from backends.hf.model import CausalModel
from backends.hf.rollback import check_family, check_rollback
from backends.hf.trial import trial_error
from specdec.errors import ConfigError, UnsupportedError

TINY = {
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("family", ["lean_llama", "llama", "gpt2", "qwen2", "qwen3", "gpt_neox", "gemma", "mistral"])
def test_full_attention_goes_back(tiny, family) -> None:
    model = tiny(family)
    use_few_rows(model.model)
    check_family(model)
    check_rollback(model)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("mamba", "MambaForCausalLM cannot be rolled back: it is stateful"),
        ("sliding", "MistralForCausalLM cannot be rolled back: .*DynamicSlidingWindowLayer"),
        ("gemma2", "Gemma2ForCausalLM cannot be rolled back: .*DynamicSlidingWindowLayer"),
        ("bloom", "BloomForCausalLM cannot be rolled back: it takes no mask"),
        ("falcon_alibi", "FalconForCausalLM cannot be rolled back: it takes no mask"),
    ],
)
def test_others_are_refused_by_name(tiny, family, said) -> None:
    with pytest.raises(UnsupportedError, match=said + ".*rollback=recompute"):
        check_rollback(tiny(family))


def test_a_model_that_answers_differently_after_going_back_is_refused(tiny) -> None:
    model = tiny("llama")
    attention = model.model.model.layers[0].self_attn
    # Scores now depend on how many keys are shown.
    attention.register_forward_pre_hook(_shift_by_number_of_keys, with_kwargs=True)
    assert trial_error(model) > 1e-2
    with pytest.raises(UnsupportedError, match="gave other logits"):
        check_rollback(model)


def _shift_by_number_of_keys(module, args, kwargs):
    mask = kwargs["attention_mask"]
    num_keys = kwargs["hidden_states"].shape[1] if mask is None else mask.shape[-1]
    return args, {**kwargs, "hidden_states": kwargs["hidden_states"] * (1 + num_keys)}


def test_an_encoder_decoder_is_refused() -> None:
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=29, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, decoder_start_token_id=0)
    )
    with pytest.raises(UnsupportedError, match="T5ForConditionalGeneration is an encoder-decoder"):
        check_family(CausalModel(model, max_context=64))


def test_rope_that_turns_cached_positions_is_limited() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}
    config = Phi3Config(**TINY, max_position_embeddings=64, original_max_position_embeddings=32, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedError, match="once a text exceeds 32 tokens"):
        check_family(CausalModel(model))
    check_family(CausalModel(model, max_context=32))


def test_context_cannot_exceed_what_the_model_has_positions_for(tiny) -> None:
    with pytest.raises(ConfigError, match="max_context must be an integer from 2 to 96, got 97"):
        CausalModel(tiny("gpt2").model, max_context=97)
    with pytest.raises(ConfigError, match="MambaForCausalLM does not say how long a text may be"):
        CausalModel(tiny("mamba").model)
