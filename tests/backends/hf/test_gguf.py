"""GGUF: a file written here block by block is read back value by value, and a Llama in it answers as the original."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backends.hf.gguf import F16, F32, Q4_1, Q8_0, GgufFile
from backends.hf.gguf_llama import HEAD, LAYER_NAMES, TOP_NAMES, load_gguf, load_gguf_text
from backends.hf.load import load_model
from specdec.errors import CheckpointError, UnsupportedError

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
WORDS = ["<|im_start|>", "<|im_end|>", *map(chr, range(97, 123)), "Ġ", "ab", "Ġa", *map(str, range(10))]


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: object) -> bytes:
    if isinstance(item, bool):
        return struct.pack("<I?", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", UINT32, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + string(item)
    if isinstance(item[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(map(string, item))
    return struct.pack("<IIQ", ARRAY, INT32, len(item)) + struct.pack(f"<{len(item)}i", *item)


def quantised(values: np.ndarray, kind: int) -> tuple[bytes, np.ndarray]:
    """Bytes of a tensor, and the values that they stand for, block by block."""
    if kind == F32:
        return values.astype("<f4").tobytes(), values
    if kind == F16:
        return values.astype("<f2").tobytes(), values.astype("<f2").astype(np.float32)
    raw, exact = b"", []
    for block in values.reshape(-1, 32):
        if kind == Q8_0:
            scale = np.float16(np.abs(block).max() / 127)
            codes = np.clip(np.round(block / np.float32(scale)), -127, 127).astype(np.int8)
            raw += scale.tobytes() + codes.tobytes()
            exact.append(codes.astype(np.float32) * np.float32(scale))
        else:
            low, scale = np.float16(block.min()), np.float16((block.max() - block.min()) / 15)
            codes = np.clip(np.round((block - np.float32(low)) / np.float32(scale)), 0, 15).astype(np.uint8)
            raw += scale.tobytes() + low.tobytes() + (codes[:16] | codes[16:] << 4).tobytes()
            exact.append(codes.astype(np.float32) * np.float32(scale) + np.float32(low))
    return raw, np.concatenate(exact).reshape(values.shape)


def write_gguf(path: Path, metadata: dict, tensors: Sequence[tuple[str, np.ndarray, int]]) -> dict[str, np.ndarray]:
    """Write a file; returns the values that a reader must find."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    body, exact = b"", {}
    for name, values, kind in tensors:
        raw, exact[name] = quantised(values, kind)
        body += b"\0" * (-len(body) % 32)
        shape = values.shape[::-1]
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += raw
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return exact


def permuted(values: np.ndarray, num_heads: int) -> np.ndarray:
    """The order in which llama.cpp's converter stores query and key rows."""
    rows, width = values.shape
    return values.reshape(num_heads, 2, rows // num_heads // 2, width).swapaxes(1, 2).reshape(rows, width)


TEXT = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.token_type": [3, 3, *[1] * (len(WORDS) - 2)],
    "tokenizer.ggml.merges": ["a b", "Ġ a"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
SIZES = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e5,
}


def llama_file(path: Path, *, tied: bool) -> LlamaForCausalLM:
    """Write a random Llama in mixed types; returns the model with the values that the file stands for."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    own = dict(model.named_parameters())
    names = TOP_NAMES | ({} if tied else {HEAD: "lm_head.weight"})
    for layer in range(2):
        names |= {f"blk.{layer}.{a}.weight": f"model.layers.{layer}.{b}.weight" for a, b in LAYER_NAMES.items()}
    heads, tensors = {"attn_q": 4, "attn_k": 2}, []
    for theirs, ours in names.items():
        values = torch.randn(own[ours].shape).numpy() * 0.3
        part = theirs.split(".")[-2]
        kind = F32 if values.ndim == 1 else Q8_0 if part == "token_embd" else F16 if part == "attn_v" else Q4_1
        tensors.append((theirs, permuted(values, heads[part]) if part in heads else values, kind))
    exact = write_gguf(path, SIZES | TEXT, tensors)
    for theirs, ours in names.items():
        values = exact[theirs]
        part = theirs.split(".")[-2]
        if part in heads:
            rows, width = values.shape
            values = values.reshape(heads[part], rows // heads[part] // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
        own[ours].data = torch.from_numpy(np.ascontiguousarray(values))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_answers_as_the_original(tmp_path: Path, tied: bool) -> None:
    original = llama_file(tmp_path / "tiny.gguf", tied=tied)
    loaded = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    ids = torch.randint(0, len(WORDS), (1, 20))
    found = loaded.uncached(ids, columns=range(20)).logits_BCV
    torch.testing.assert_close(found, original(ids).logits, atol=1e-5, rtol=1e-5)
    assert loaded.max_context == 64


@pytest.mark.parametrize("kind", [F32, F16, Q4_1, Q8_0])
def test_values_are_read_as_the_blocks_say(tmp_path: Path, kind: int) -> None:
    values = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    exact = write_gguf(
        tmp_path / "x.gguf", {"a": 1}, [("first", np.ones((1, 32), np.float32), F32), ("x", values, kind)]
    )
    np.testing.assert_array_equal(GgufFile(tmp_path / "x.gguf").read("x"), exact["x"])


def test_text_is_split_as_the_file_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", TEXT, [])
    text = load_gguf_text(tmp_path / "x.gguf")
    encoded = text.tokenizer.encode("<|im_start|>ab a12", add_special_tokens=False)
    assert encoded.tokens == ["<|im_start|>", "ab", "Ġa", "1", "2"]
    assert text.tokenizer.decode(encoded.ids) == "ab a12"
    assert (text.bos_id, text.eos_id, text.add_bos, text.chat_template) == (0, 1, False, "{{ messages[0].content }}")


@pytest.mark.parametrize(
    ("metadata", "error", "said"),
    [
        ({"general.architecture": "mamba"}, UnsupportedError, "architecture mamba is not read"),
        (SIZES | {"llama.rope.scaling.type": "yarn"}, UnsupportedError, "rope scaling yarn is not read"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path: Path, metadata, error, said) -> None:
    write_gguf(tmp_path / "x.gguf", metadata, [("token_embd.weight", np.ones((4, 32), np.float32), F32)])
    with pytest.raises(error, match=said):
        load_gguf(tmp_path / "x.gguf", dtype=torch.float32)


def test_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {"tokenizer.ggml.model": "llama"}, [])
    with pytest.raises(UnsupportedError, match="tokenizer llama"):
        load_gguf_text(tmp_path / "x.gguf")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, TEXT, [("x", np.ones((4, 32), np.float32), F32)])
    whole = path.read_bytes()
    for content, said in ((b"", "empty"), (b"nothing at all", "no GGUF"), (whole[:200], "cut short")):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=said):
            GgufFile(path)
    path.write_bytes(whole[:-64])
    with pytest.raises(CheckpointError, match="cut short in tensor x"):
        GgufFile(path).read("x")
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match="has no tensor y"):
        GgufFile(path).read("y")
