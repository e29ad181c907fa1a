"""Runs over transformers targets: a folder as transformers saves it, a draft model beside it, and SmolLM2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MambaConfig, PreTrainedConfig

from experiments.chat import Message, encode_chat
from experiments.chat_template import ChatTemplate
from experiments.checkpoints import SMOLLM2, cache_folder
from experiments.hf import load
from experiments.run_folder import read_json, read_jsonl
from experiments.targets import TargetRequest
from specdec.errors import CheckpointError, ConfigError, UnsupportedError, WorkloadError

Command = Callable[..., int]
EOS = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
IDS = {"bos_token_id": EOS + 1, "eos_token_id": EOS, "pad_token_id": EOS}
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, **IDS}
LLAMA = LlamaConfig(vocab_size=258, num_key_value_heads=2, max_position_embeddings=512, **SIZES)
GPT2 = GPT2Config(vocab_size=258, n_positions=512, n_embd=16, n_layer=1, n_head=2, **IDS)
FEW = ("+experiment=smoke", "workload.limit=3", "sampling.max_new_tokens=12")


def save(folder: Path, config: PreTrainedConfig, *, shift: int = 0) -> Path:
    """A random model and a tokenizer of bytes; ``shift`` gives every byte another id."""
    torch.manual_seed(shift)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * (0.5 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {byte: (i + shift) % len(alphabet) for i, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|eos|>", "<|bos|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": {"content": "<|bos|>"}, "eos_token": "<|eos|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("llama"), LLAMA)


def request(folder: Path | None, **settings) -> TargetRequest:
    base = {"cache_dtype": "fp32", "indexer_dtype": "plain", "device": torch.device("cpu"), "dtype": torch.float32}
    return TargetRequest(folder=folder, **(base | settings))


def summary_of(folder: Path) -> dict:
    (found,) = folder.glob("outputs/*/*/summary.json")
    return read_json(found)


@pytest.mark.parametrize("more", [(), ("engine.batch_invariant=true", "engine.dtype=bf16"), ("engine.max_batch=2",)])
def test_a_saved_folder_runs_and_is_lossless(run_here: Command, tmp_path: Path, llama: Path, more) -> None:
    assert run_here("target=hf", f"target.checkpoint={llama}", "drafter=ngram", *FEW, *more) == 0
    assert summary_of(tmp_path)["lossless"] is True


def test_a_draft_model_with_other_ids_runs_and_is_lossless(run_here: Command, tmp_path: Path, llama: Path) -> None:
    draft = save(tmp_path / "draft", GPT2, shift=7)
    target = ("target=hf", f"target.checkpoint={llama}", *FEW)
    assert run_here(*target, "drafter=draft_model", f"drafter.checkpoint={draft}") == 0
    summary = summary_of(tmp_path)
    assert summary["lossless"] is True
    assert summary["draft_acceptance_rate"]["n"] > 0


def test_a_model_drafts_for_itself_without_a_miss(run_here: Command, tmp_path: Path, llama: Path) -> None:
    target = ("target=hf", f"target.checkpoint={llama}", *FEW)
    assert run_here(*target, "drafter=draft_model", f"drafter.checkpoint={llama}") == 0
    assert summary_of(tmp_path)["draft_acceptance_rate"]["value"] == 1.0


def test_a_draft_model_needs_a_vocabulary_that_can_be_matched(run_here: Command, capsys, llama: Path) -> None:
    toy = ("target=toy", *FEW, "drafter=draft_model", f"drafter.checkpoint={llama}")
    assert run_here(*toy) != 0
    assert "reads at most 512 tokens, requests may have 1024" in capsys.readouterr().err
    assert run_here(*toy, "engine.max_context=500") != 0
    assert "257 and 258 tokens, and only one of them has a tokenizer" in capsys.readouterr().err


def test_a_draft_model_serves_a_target_of_another_kind(
    run_here: Command, tmp_path: Path, checkpoint: Path, llama: Path
) -> None:
    target = (f"target.checkpoint={checkpoint}", "engine.max_context=500", *FEW)
    assert run_here(*target, "drafter=draft_model", f"drafter.checkpoint={llama}") == 0
    assert summary_of(tmp_path)["lossless"] is True


def test_smollm2_is_the_default_and_is_not_downloaded(run_here: Command, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run_here("target=hf") == 2
    assert "python -m experiments.fetch smollm2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("target=hf", "target.checkpoint=nowhere"), "nowhere: there is no such checkpoint folder"),
        (("drafter=draft_model",), "drafter.checkpoint must be set"),
        (("drafter=draft_model", "drafter.checkpoint=nowhere"), "(conf: drafter.checkpoint)"),
    ],
)
def test_what_is_missing_is_named(run_here: Command, capsys, overrides, said) -> None:
    assert run_here(*overrides) == 2
    assert said in capsys.readouterr().err


def test_turns_go_through_the_template_of_the_tokenizer(llama: Path) -> None:
    loaded = load(request(llama))
    turns = [Message(role="user", content="hi"), Message(role="assistant", content="yes")]
    assert encode_chat(turns, loaded.chat_format) == "<|bos|>user: hi\n<|bos|>assistant: yes\nassistant:"
    assert encode_chat(turns[:1], load(request(llama, params={"chat_format": "plain"})).chat_format) == (
        "user: hi\nassistant:"
    )
    with pytest.raises(WorkloadError, match="no system turn"):
        encode_chat([Message(role="system", content="x")], loaded.chat_format)
    assert (loaded.eos_ids, loaded.bos_id, loaded.add_bos) == ((EOS,), EOS + 1, False)


def test_a_template_reaches_nothing_outside() -> None:
    for source in ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(WorkloadError, match="refuses"):
            ChatTemplate(source=source).render([{"role": "user", "content": "x"}])


def test_a_missing_jinja_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match="jinja2 is not installed"):
        ChatTemplate(source="x").render([{"role": "user", "content": "x"}])


def test_refusals_name_what_was_asked(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(CheckpointError, match="target=hf needs a checkpoint"):
        load(request(None))
    with pytest.raises(ConfigError, match="there is no rolback"):
        load(request(llama, params={"rolback": "recompute"}))
    with pytest.raises(UnsupportedError, match="target.cache_dtype=fp8"):
        load(request(llama, cache_dtype="fp8"))
    with pytest.raises(ConfigError, match="has no chat template|chat_format must be one of"):
        load(request(llama, params={"chat_format": "mine"}))
    with pytest.raises(CheckpointError, match="neither config.json nor a GGUF"):
        load(request(tmp_path))


def test_a_stateful_model_is_refused_and_served_by_recompute(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=258, hidden_size=16, num_hidden_layers=1, state_size=4, use_mambapy=False, **IDS)
    folder = save(tmp_path / "mamba", config)
    with pytest.raises(UnsupportedError, match="MambaForCausalLM cannot be rolled back"):
        load(request(folder, params={"max_context": 64}))
    params = {"max_context": 64, "rollback": "recompute"}
    assert load(request(folder, params=params)).max_context == 64
    with pytest.raises(UnsupportedError, match="batch_invariant"):
        load(request(folder, params=params, batch_invariant=True))


@pytest.mark.skipif(not (cache_folder() / SMOLLM2).is_dir(), reason="python -m experiments.fetch smollm2")
def test_smollm2_copies_losslessly(run_here: Command, tmp_path: Path) -> None:
    row = {"id": "a", "turns": ["Repeat exactly, three times: the quick brown fox jumps."]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    workload = ("workload=file", "workload.path=prompts.jsonl", "sampling.max_new_tokens=24")
    target = ("target=hf", "target.checkpoint=smollm2", "drafter=ngram", "drafter.num_draft_tokens=5")
    assert run_here(*target, *workload, "sampling.temperature=0", "require_lossless=true") == 0
    (path,) = tmp_path.glob("outputs/*/*/outputs.jsonl")
    assert "quick brown fox" in read_jsonl(path)[0]["text"]
    assert summary_of(tmp_path)["tokens_per_step"]["value"] > 1.3
