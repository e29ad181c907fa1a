"""A folder that transformers saved, without a tokenizer, through the command line: the greedy text of its own model."""

import json
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    config = transformers.DeepseekV4Config(
        vocab_size=67,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=24,
        o_groups=2,
        o_lora_rank=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        compress_ratios=[0, 4, 128],
        sliding_window=16,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=4,
        num_hash_layers=1,
        hc_sinkhorn_iters=4,
        max_position_embeddings=256,
        eos_token_id=66,
        experts_implementation="eager",
        attn_implementation="eager",
    )
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder, model


def greedy(model: torch.nn.Module, prompt: list[int], count: int, eos: int) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if ids[-1] == eos:
                break
    return ids[len(prompt) :]


def test_run_decodes_a_saved_folder_without_a_tokenizer(run_here, tmp_path, saved):
    folder, model = saved
    prompts = {"a": [5, 6, 7, 8, 5, 6], "b": list(range(40))}
    rows = "".join(json.dumps({"id": name, "prompt_ids": ids}) + "\n" for name, ids in prompts.items())
    (tmp_path / "prompts.jsonl").write_text(rows, encoding="utf-8")
    code = run_here(
        f"target.checkpoint={folder}",
        "workload=file",
        "workload.path=prompts.jsonl",
        "drafter=ngram",
        "sampling.temperature=0",
        "sampling.max_new_tokens=24",
        "engine.repeats=1",
    )
    assert code == 0
    (run,) = tmp_path.glob("outputs/*/*")
    outputs = [json.loads(line) for line in (run / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["request_id"] for row in outputs} == set(prompts)
    for row in outputs:
        assert row["output_ids"] == greedy(model, prompts[row["request_id"]], 24, eos=66)
        assert row["text"] == ""
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["lossless"] is True


def test_run_names_the_missing_nextn_layer(run_here, saved, tmp_path, capsys):
    folder, _ = saved
    (tmp_path / "prompts.jsonl").write_text('{"prompt_ids": [1, 2]}\n', encoding="utf-8")
    code = run_here(f"target.checkpoint={folder}", "workload=file", "workload.path=prompts.jsonl", "drafter=nextn")
    assert code != 0
    error = capsys.readouterr().err
    assert "NextN" in error or "nextn" in error
    assert "Traceback" not in error
