"""A tiny V4 checkpoint with random weights and a byte tokenizer, and the run command in an empty folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backends.deepseek_v4.weights.writer import write_checkpoint
from experiments import run
from experiments.training.architecture import build_models, official_config
from experiments.training.config import ModelSettings

NUM_BYTES = 256
EOS = NUM_BYTES
TINY = ModelSettings(
    vocab_size=NUM_BYTES + 8,
    hidden_size=64,
    compress_ratios=[0, 4, 128],
    num_attention_heads=2,
    head_dim=64,
    qk_rope_head_dim=16,
    q_lora_rank=32,
    o_groups=2,
    o_lora_rank=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    num_hash_layers=1,
    sliding_window=16,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=8,
    hc_mult=2,
)


def write_tokenizer(folder: Path) -> None:
    """One token a byte, and an end-of-sequence token after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|eos|>"])
    assert tokenizer.token_to_id("<|eos|>") == EOS
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a complete, random V4 checkpoint with a NextN layer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    raw = official_config(TINY, context=512, bos=EOS, eos=EOS)
    built = build_models(raw, seed=0, device="cpu")
    write_checkpoint(folder, raw, built.parameters(), num_experts=TINY.n_routed_experts)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``experiments.run`` with these overrides, in an empty folder, on one thread; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def command(*overrides: str) -> int:
        code = run.main([*overrides, "engine.threads=1"])
        torch.set_num_threads(1)
        return code

    return command
