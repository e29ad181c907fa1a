"""The dense forward against transformers' DeepseekV4ForCausalLM: same random weights, same logits."""

import pytest
import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.dense import dense_forward
from backends.deepseek_v4.model import DeepseekV4Model
from experiments.as_transformers import as_transformers

pytest.importorskip("transformers")


def pair(raw: dict[str, object], randomise) -> tuple[torch.nn.Module, DeepseekV4Model, DeepseekV4Config]:
    """The transformers model of an official configuration and ours with the same weights."""
    ours = DeepseekV4Model(DeepseekV4Config.from_dict(raw))
    randomise(ours)
    eager = {"experts_implementation": "eager", "attn_implementation": "eager"}
    return as_transformers({**raw, **eager}, ours.state_dict()), ours, ours.config


CASES = {
    "all kinds": ({}, 300),
    "window beyond the prompt": ({"sliding_window": 128}, 90),
    "window cut into blocks": ({"sliding_window": 16}, 75),
    "prompt shorter than a block": ({}, 3),
    "one token": ({}, 1),
    "window only": ({"compress_ratios": [0] * 7}, 70),
    "first layers compress": ({"compress_ratios": [128, 128, 4, 128, 4, 4, 0]}, 260),
    "everything selected": ({"index_topk": 512}, 150),
    "many index heads, few rows": ({"index_n_heads": 32, "index_topk": 4}, 140),
    "no hash layers, one group": ({"num_hash_layers": 0, "o_groups": 1}, 40),
    "plain rope": ({"rope_scaling": None}, 140),
    "whole head rotated": ({"qk_rope_head_dim": 16, "head_dim": 16}, 40),
    "two streams, few rounds": ({"hc_mult": 2, "hc_sinkhorn_iters": 3}, 40),
}


@pytest.mark.parametrize("case", CASES)
def test_dense_logits_equal_transformers(case, tiny_json, randomise):
    changes, length = CASES[case]
    theirs, ours, config = pair({**tiny_json, **changes}, randomise)
    tokens = torch.randint(0, config.vocab_size, (2, length))
    with torch.no_grad():
        expected = theirs(input_ids=tokens, use_cache=False).logits
        logits = ours.logits(dense_forward(ours, tokens).streams)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
