"""Tiny random models of many families, and a target that compares every pass with the model itself, as fixtures."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from backends.hf.model import CausalModel
from backends.hf.target import HfPassConfig, HfTarget
from specdec.api import RoundLayout, Tables, TargetOutput
from specdec.engine import Engine, EngineConfig
from specdec.request import Request, RequestOutput
from specdec.testing import run_checked

VOCABULARY = 29
CONTEXT = 96
EOS = 0
# Rounding of the wildest of the models; a wrong position or key is an error of the order of the logits.
TOLERANCE = 1e-3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 4}
OWN_IDS = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": EOS}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "gpt2": lambda: GPT2Config(**GPT2_SIZES, **OWN_IDS),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=8),
    "gpt_neox": lambda: GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
    "gemma": lambda: GemmaConfig(**SIZES, head_dim=8),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "sliding": lambda: MistralConfig(**SIZES, sliding_window=8),
    "gemma2": lambda: Gemma2Config(**SIZES, head_dim=8, sliding_window=8),
    "mamba": lambda: MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4, use_mambapy=False, **OWN_IDS
    ),
    "bloom": lambda: BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=4, **OWN_IDS),
    "falcon_alibi": lambda: FalconConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, alibi=True, **OWN_IDS
    ),
}


def make_model(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> CausalModel:
    """A model whose logits are far from flat and depend on the whole text."""
    lean = family == "lean_llama"
    model = AutoModelForCausalLM.from_config(CONFIGS["llama" if lean else family]())
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "A_log" in name or name.endswith(".D") or "dt_proj" in name:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and "bias" not in name
        scale = 2.0 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.data = noise * scale + (1.0 if is_norm else 0.0)
    return CausalModel(model.to(dtype), max_context=CONTEXT, lean=lean)


class ComparedTarget:
    """Runs a target and asserts that every logit row is what the model says of the whole text without a cache."""

    def __init__(self, model: CausalModel, target: HfTarget) -> None:
        self.vocab_size, self.max_context = target.vocab_size, target.max_context
        self.device, self.cache_groups = target.device, target.cache_groups
        self.layouts: list[RoundLayout] = []
        self._model, self._target = model, target
        self._known: dict[int, list[int]] = {}

    def forward(
        self, layout: RoundLayout, tokens_T: torch.Tensor, tables: Tables, *, hidden_layers: tuple[int, ...] = ()
    ) -> TargetOutput:
        self.layouts.append(layout)
        output = self._target.forward(layout, tokens_T, tables, hidden_layers=hidden_layers)
        for row, start, length, first in zip(
            layout.rows, layout.start_positions, layout.query_lens, layout.query_starts, strict=False
        ):
            known = self._known.setdefault(row, [])
            known[start:] = tokens_T[first : first + length].tolist()
            rows = {r: start + t - first for r, t in enumerate(layout.logit_rows) if first <= t < first + length}
            if rows:
                expected = self._model.uncached(torch.tensor([known]), columns=list(rows.values())).logits_BCV[0]
                torch.testing.assert_close(output.logits_RV[list(rows)], expected, atol=TOLERANCE, rtol=TOLERANCE)
        return output


@pytest.fixture
def tiny() -> Callable[..., CausalModel]:
    return make_model


@pytest.fixture
def compared() -> Callable[[CausalModel, HfPassConfig], ComparedTarget]:
    return lambda model, config: ComparedTarget(model, HfTarget(model, config))


@pytest.fixture
def decoded() -> Callable[..., dict[str, RequestOutput]]:
    """Outputs by id of requests decoded over a target."""

    def decode(target, drafter, verifier, config: EngineConfig, requests: Sequence[Request]):
        return run_checked(Engine(target, drafter, verifier, config, (EOS,)), requests)

    return decode
