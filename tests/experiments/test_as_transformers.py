"""The transformers model that the CPU benchmark compares with computes what our target computes."""

import pytest
import torch

from backends.deepseek_v4.dense import dense_forward
from experiments.as_transformers import as_transformers
from experiments.training.architecture import build_models, official_config
from experiments.training.config import ModelSettings

pytest.importorskip("transformers")


def test_the_renamed_weights_give_the_same_logits() -> None:
    settings = ModelSettings(
        vocab_size=61,
        hidden_size=32,
        compress_ratios=[0, 4, 128],
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=16,
        o_lora_rank=16,
        moe_intermediate_size=24,
        sliding_window=16,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=8,
    )
    raw = official_config(settings, context=512, bos=0, eos=1)
    ours = build_models(raw, seed=0, device="cpu").target
    theirs = as_transformers(raw, ours.state_dict())
    tokens = torch.randint(0, 61, (1, 140))
    with torch.no_grad():
        expected = theirs(input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(ours.logits(dense_forward(ours, tokens).streams), expected, atol=1e-4, rtol=1e-3)
