"""A folder that transformers' ``save_pretrained`` wrote, through our loader and paged caches: the same logits.

The oracle is the transformers model over the whole text at once; ours runs the text whole, token by token and in
packed blocks, over shuffled pages.
"""

import pytest
import torch

from backends.nextn.load import load_checkpoint

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
LENGTH = 300
BASE = {
    "vocab_size": 67,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4],
    "sliding_window": 32,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
    "num_hash_layers": 1,
    "swiglu_limit": 1.0,
    "hc_sinkhorn_iters": 6,
    "max_position_embeddings": 1024,
}
SHAPES = {
    "window smaller than the text, selecting": {},
    "window larger than the text": {"sliding_window": 512, "index_topk": 256},
    "compressing from the first layer": {"compress_ratios": [128, 4, 4, 128], "index_n_heads": 24, "index_topk": 4},
}


def randomised(changes):
    config = transformers.DeepseekV4Config(
        **{**BASE, **changes}, experts_implementation="eager", attn_implementation="eager"
    )
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fan = parameter.shape[-1] if parameter.dim() > 1 else 1
            scale = 0.3 if parameter.dim() == 1 else fan**-0.5
            around = 1.0 if "norm" in name and parameter.dim() == 1 else 0.0
            parameter.copy_(around + torch.randn(parameter.shape, generator=generator) * scale)
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):
                draws = torch.rand(buffer.shape[0], BASE["n_routed_experts"], generator=generator)
                buffer.copy_(draws.argsort(-1)[:, : buffer.shape[1]])
            elif name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
    return model


@pytest.fixture(scope="module", params=SHAPES)
def oracle(request, tmp_path_factory):
    """(folder, text, logits [L, V] of the transformers model)."""
    folder = tmp_path_factory.mktemp("saved")
    model = randomised(SHAPES[request.param])
    model.save_pretrained(folder)
    text = torch.randint(0, BASE["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    assert logits.std() > 0.3
    return folder, text, logits


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 8, 64, 127, 129, LENGTH])
def test_paged_logits_equal_transformers_in_blocks_of(block, oracle, world_around):
    folder, text, expected = oracle
    world = world_around(load_checkpoint(folder, device=torch.device("cpu"), dtype=torch.float32).target)
    first = 0 if block >= 64 else 200
    parts = []
    if first:
        parts.append(world.run([(1, 0, text[:first])], num_prefill_reqs=1).logits_RV)
    for begin in range(first, LENGTH, block):
        parts.append(world.run([(1, begin, text[begin : begin + block])]).logits_RV)
    torch.testing.assert_close(torch.cat(parts), expected, atol=TOLERANCE, rtol=0)


def test_a_folder_without_a_nextn_layer_loads_without_one(oracle):
    folder, _, _ = oracle
    assert load_checkpoint(folder, device=torch.device("cpu"), dtype=torch.float32).nextn is None
