"""A corpus of a few kilobytes, a tokenizer trained on it, and a trainer config of a few thousand parameters."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.training.config import TrainerConfig, config_from_dict

MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "compress_ratios": [0, 4],
    "num_attention_heads": 2,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 16,
    "o_lora_rank": 16,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32,
    "sliding_window": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "hc_sinkhorn_iters": 4,
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the archive unpacks to: two training files and a held-out one, three documents each."""
    folder = tmp_path_factory.mktemp("corpus")
    for part, names in (("train", ("a", "b")), ("heldout", ("c",))):
        (folder / part).mkdir()
        for name in names:
            documents = [f"Document {name}{i}.\n" + "The quick brown fox jumps over it. " * 8 for i in range(3)]
            (folder / part / f"{name}.txt").write_text("\n\f\n".join(documents), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tokenizer_file(corpus: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|pad|>", "<|bos|>", "<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([p.read_text(encoding="utf-8") for p in sorted(corpus.rglob("*.txt"))], trainer)
    path = corpus.parent / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def trainer_config(corpus: Path, tokenizer_file: Path) -> Callable[..., TrainerConfig]:
    """Build a config; keywords replace top-level settings."""

    def build(**settings: object) -> TrainerConfig:
        base = {
            "max_steps": 6,
            "batch_sequences": 2,
            "device": "cpu",
            "compute_dtype": "fp32",
            "compile": False,
            "log_steps": 2,
            "model": MODEL,
            "data": {
                "corpus": str(corpus),
                "tokenizer": str(tokenizer_file),
                "sequence_tokens": 32,
                "workers": 1,
            },
            "objective": {"nextn_weights": [0.2, 0.1]},
        }
        return config_from_dict({**base, **settings})

    return build
