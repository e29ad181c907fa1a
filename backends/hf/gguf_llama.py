"""A Llama model and its tokenizer from a GGUF file: names, shapes and order as transformers has them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from backends.hf.gguf import GgufFile
from specdec.errors import CheckpointError, UnsupportedError

ARCHITECTURE = "llama"
TOKENIZER_MODEL = "gpt2"
# Pre-tokenizers that take digits one by one and otherwise split as GPT-2 does.
DIGIT_SPLITTERS = ("smollm", "default", "gpt-2")
CONTROL, USER_DEFINED = 3, 4
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
HEAD = "output.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufText:
    """What a GGUF file says about text.

    eos_id, bos_id  None where the file names none
    chat_template   Jinja template, or None
    """

    tokenizer: Tokenizer
    eos_id: int | None
    bos_id: int | None
    add_bos: bool
    chat_template: str | None


def load_gguf(path: Path, *, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model with weights in ``dtype``; raises UnsupportedError for another architecture than Llama's."""
    file = GgufFile(path)
    config = _config(file, path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(_weights(file, config, dtype), strict=False, assign=True)
    model.tie_weights()
    # Its frequencies are computed, not stored, so nothing has filled them.
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise CheckpointError(f"{path} lacks {left[0]}")
    return model


def load_gguf_text(path: Path) -> GgufText:
    """The tokenizer and what belongs to it; raises UnsupportedError for another kind than byte-level BPE."""
    metadata = GgufFile(path).metadata
    kind, splitter = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != TOKENIZER_MODEL or splitter not in DIGIT_SPLITTERS:
        raise UnsupportedError(
            f"{path}: tokenizer {kind} with splitter {splitter} is not read (known is byte-level BPE)"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if splitter == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    for kind, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        chosen = [token for token, own in zip(tokens, kinds, strict=False) if own == kind]
        add([AddedToken(token, special=kind == CONTROL, normalized=False) for token in chosen])
    return GgufText(
        tokenizer=tokenizer,
        eos_id=metadata.get("tokenizer.ggml.eos_token_id"),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _config(file: GgufFile, path: Path) -> LlamaConfig:
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedError(f"{path}: GGUF architecture {architecture} is not read (known is {ARCHITECTURE})")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedError(f"{path}: rope scaling {scaling} is not read")
    heads = metadata["llama.attention.head_count"]
    return LlamaConfig(
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata.get("llama.rope.freq_base", 10_000.0)},
        max_position_embeddings=metadata["llama.context_length"],
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        tie_word_embeddings=HEAD not in file.tensors,
        attn_implementation="sdpa",
    )


def _weights(file: GgufFile, config: LlamaConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    names = dict(TOP_NAMES)
    if not config.tie_word_embeddings:
        names[HEAD] = "lm_head.weight"
    for layer in range(config.num_hidden_layers):
        for theirs, ours in LAYER_NAMES.items():
            names[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for theirs, ours in names.items():
        values = file.read(theirs)
        part = theirs.split(".")[-2]
        if part in heads:
            values = unpermuted(values, heads[part])
        weights[ours] = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return weights


def unpermuted(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a query or key projection in transformers' order.

    GGUF keeps the two halves of a rotated pair next to each other; transformers keeps all first halves of a head
    before all second halves.
    """
    num_rows, width = values.shape
    half = num_rows // num_heads // 2
    return values.reshape(num_heads, half, 2, width).swapaxes(1, 2).reshape(num_rows, width)
