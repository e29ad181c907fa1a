"""A tiny random Llama whose text a small head can learn, with a tokenizer of bytes, and a trainer for it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig

from experiments.schemas import TargetSchema
from experiments.training.heads.config import HeadTrainerConfig, head_config
from experiments.training.heads.loop import train_head

EOS = 256
LLAMA = LlamaConfig(
    vocab_size=258,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=EOS + 1,
    eos_token_id=EOS,
    pad_token_id=EOS,
)
PROMPTS = ("alpha", "be", "gamma ray", "delta", "epsilon", "zeta function", "eta", "theta", "iota", "kappa")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LLAMA)
    for name, parameter in model.named_parameters():
        # A strong residual from the embedding makes the next token depend on few tokens before it.
        scale = 1.5 if "embed" in name or "lm_head" in name else 0.05
        parameter.data = torch.randn(parameter.shape) * (scale if parameter.dim() > 1 else 0.0) + (parameter.dim() == 1)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|eos|>", "<|bos|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n\n".join(PROMPTS), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def settings_of(prompts: Path) -> Callable[..., HeadTrainerConfig]:
    """Trainer settings for a few steps; ``text`` and ``shape`` are merged."""

    def make(kind: str, *, text: dict | None = None, **changes: object) -> HeadTrainerConfig:
        own_text = {"prompts": str(prompts), "max_new_tokens": 40, "batch": 3, "heldout": 0.3, **(text or {})}
        base = {"kind": kind, "max_steps": 4, "device": "cpu", "threads": 1, "log_steps": 1}
        return head_config({**base, "text": own_text, **changes})

    return make


@pytest.fixture(scope="session")
def train(llama: Path) -> Callable[..., dict]:
    """Train a head for the Llama in a folder; returns the result. ``said`` takes the lines that a user would read."""

    def run(config: HeadTrainerConfig, folder: Path, *, said: list[str] | None = None, **target: object) -> dict:
        chosen = {"_target_": "experiments.hf.load", "checkpoint": str(llama), **target}
        settings = dataclasses.asdict(TargetSchema(**chosen))
        return train_head(config, settings, folder, say=([] if said is None else said).append)

    return run


@pytest.fixture(scope="session")
def trained(train, settings_of, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """An EAGLE-3 head that has learnt something of the greedy Llama, and the result of its training."""
    folder = tmp_path_factory.mktemp("eagle3")
    config = settings_of("eagle3", max_steps=80, lr=0.004, text={"temperature": 0.0, "samples": 1})
    return folder, train(config, folder)
