"""The toy target: no checkpoint and no sense, but real pages, a draft model and bytes as tokens; runs in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from experiments.annotations import checked, declared
from experiments.chat import ChatFormat
from experiments.targets import Served, TargetRequest
from experiments.toy_text import NUM_BYTES, Bytes
from specdec.api import CacheGroupSpec
from specdec.errors import ConfigError
from specdec.toy import TableDraft, TableTarget

EOS_ID = NUM_BYTES
VOCAB_SIZE = NUM_BYTES + 1
MAX_CONTEXT = 1024
ROWS_PER_PAGE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Toy:
    """Settings of the toy under ``target.params``, and what ``experiments.targets.LoadedTarget`` asks for.

    sharpness       standard deviation of its logits: the higher, the easier to predict
    history_weight  share of its choices that depends on old tokens, which its draft model does not see
    """

    sharpness: float = 4.0
    history_weight: float = 0.25
    max_context: int = MAX_CONTEXT
    vocab_size: int = VOCAB_SIZE
    eos_ids: tuple[int, ...] = (EOS_ID,)
    bos_id: int | None = 0
    add_bos: bool = False
    chat_format: ChatFormat = ChatFormat.PLAIN
    device: torch.device = torch.device("cpu")

    @property
    def tokenizer(self) -> Bytes:
        return Bytes()

    @property
    def cache_groups(self) -> tuple[CacheGroupSpec, ...]:
        return self._target().cache_groups

    @property
    def draft_groups(self) -> tuple[CacheGroupSpec, ...]:
        return TableDraft(self._target()).cache_groups

    def serve(self, num_pages: Mapping[str, int], *, max_context: int, max_batch: int) -> Served:
        """A fresh toy with empty caches."""
        target = self._target(max(num_pages.values()))
        return Served(target=target, draft_backend=TableDraft(target))

    def _target(self, num_pages: int = 1) -> TableTarget:
        return TableTarget(
            rows_per_page=ROWS_PER_PAGE,
            num_rows=num_pages * ROWS_PER_PAGE,
            device=self.device,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            sharpness=self.sharpness,
            history_weight=self.history_weight,
        )


def load(request: TargetRequest) -> Toy:
    """The loader that ``target=toy`` names; raises ConfigError for parameters that it does not have, or not so."""
    known = {"sharpness", "history_weight", "max_context"}
    unknown = sorted(set(request.params) - known)
    if unknown:
        raise ConfigError(f"target.params: the toy has no {unknown[0]} (it has {', '.join(sorted(known))})")
    types = declared(Toy)
    params = {name: checked(value, types[name], f"target.params.{name}") for name, value in request.params.items()}
    return Toy(**params, device=request.device)
