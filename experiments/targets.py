"""What a run needs of a target model, whatever it is: loaded once a process, served with the pages of each run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from experiments.chat import ChatFormat
from experiments.chat_template import ChatTemplate
from specdec.api import CacheGroupSpec, DraftBackend, Target


class Codec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRequest:
    """What is asked of a loader.

    folder       checkpoint folder, or None for a target that has none
    cache_dtype  fp32, bf16 or fp8
    indexer_dtype  plain, fp8 or mxfp4
    device, dtype  where and in what the model computes
    batch_invariant, fixed_rows  see EngineConfig
    kernels      implementation of the operators (reference, triton or flash_mla); None: the loader's own choice
    params       free parameters of a target from elsewhere
    """

    folder: Path | None
    cache_dtype: str
    indexer_dtype: str
    device: torch.device
    dtype: torch.dtype
    batch_invariant: bool = False
    fixed_rows: int = 8
    kernels: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LentWeights:
    """What a head over a target's states borrows of the target; tensors share its storage.

    embedding     [V, D]
    head          [V, D]
    num_layers    of the target
    num_streams   residual streams; states of a layer arrive as num_streams * D
    head_input    states after the last layer (LAST_LAYER) [..., num_streams * D] -> what enters the head [..., D]
    """

    embedding: torch.Tensor
    head: torch.Tensor
    num_layers: int
    num_streams: int
    head_input: Callable[[torch.Tensor], torch.Tensor]


@runtime_checkable
class Lender(Protocol):
    """A loaded target over whose states a head can draft."""

    def lend(self) -> LentWeights:
        """What a head borrows; raises UnsupportedError for a target without an embedding or a head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftRequest:
    """What is asked of the loader of a drafter that brings a model of its own.

    folder       checkpoint folder, or None for a model that has none
    device, dtype  where and in what the model computes
    vocab_size   of the target
    tokenizer    of the target, or None
    max_context  most tokens of a request
    max_batch    most requests at the same time
    lent         what a head over the target's states borrows of it; None for a target that lends nothing
    """

    folder: Path | None
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    tokenizer: Codec | None
    max_context: int
    max_batch: int
    lent: LentWeights | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A target with caches, and its draft model under the same pages if the checkpoint has one."""

    target: Target
    draft_backend: DraftBackend | None = None


class LoadedTarget(Protocol):
    """Weights in memory and what belongs to them; makes as many targets as runs ask for.

    max_context   most tokens of a request
    cache_groups  groups of the target
    draft_groups  groups that the draft model writes; empty without one
    tokenizer     None: only prompts given as token ids can be run
    eos_ids       ids that end a sequence
    bos_id        id that stands for an empty prompt, or None
    add_bos       whether text prompts begin with ``bos_id``
    chat_format   how turns become one prompt
    """

    max_context: int
    vocab_size: int
    cache_groups: tuple[CacheGroupSpec, ...]
    draft_groups: tuple[CacheGroupSpec, ...]
    tokenizer: Codec | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    chat_format: ChatFormat | ChatTemplate

    def serve(self, num_pages: Mapping[str, int], *, max_context: int, max_batch: int) -> Served:
        """Make the caches and what runs over them."""
