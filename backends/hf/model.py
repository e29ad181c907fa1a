"""CausalModel: a transformers causal language model under one calling convention; knows nothing of engine passes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from backends.growing_lengths import growing_lengths
from backends.hf.cache import RowCache
from backends.hf.lean_llama import LeanLlama, is_lean
from backends.hf.placement import Placement
from specdec.api import LAST_LAYER
from specdec.checks import integer
from specdec.errors import ConfigError

# transformers renamed the argument; models of either spelling are in use.
CACHE_NAMES = ("cache", "past_key_values")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOutput:
    """Result of one call.

    logits_BCV  one row per wanted column, in the model's type
    hidden_BQD  states of the wanted layers, concatenated; None if none were wanted
    """

    logits_BCV: torch.Tensor
    hidden_BQD: torch.Tensor | None


class CausalModel:
    """Holds the model and what its ``forward`` takes.

    max_context  most tokens of a request; None: what the model's configuration says
    lean         whether a model that ``LeanLlama`` stands for is run by it where there is a cache

    Raises ConfigError when neither says how long a text may be.
    """

    def __init__(self, model: PreTrainedModel, *, max_context: int | None = None, lean: bool = False) -> None:
        self.model = model.eval()
        self.name = type(model).__name__
        self.config = model.config.get_text_config(decoder=True)
        self.num_layers: int = self.config.num_hidden_layers
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.max_context = self._context(max_context)
        head = model.get_output_embeddings()
        self.vocab_size: int = self.config.vocab_size if head is None else head.weight.shape[0]
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_mask = "attention_mask" in parameters
        self._takes_columns = "logits_to_keep" in parameters
        self._lean = LeanLlama(model) if lean and is_lean(model) else None
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)

    @property
    def takes_cache(self) -> bool:
        """Whether the model works with a cache of keys and values from outside."""
        return self._cache_name is not None

    @property
    def takes_positions(self) -> bool:
        """Whether the positions of tokens may be given, so that siblings can share one."""
        return self._lean is not None or self._takes_positions

    def check_layers(self, hidden_layers: Sequence[int]) -> None:
        """Raise ConfigError for a layer that the model does not have."""
        for layer in hidden_layers:
            if layer != LAST_LAYER and not 0 <= layer < self.num_layers:
                raise ConfigError(
                    f"hidden layers of {self.name} are 0..{self.num_layers - 1}, or {LAST_LAYER} for the state before "
                    f"the head; the drafter asks for {layer}"
                )

    @torch.no_grad()
    def cached(
        self, placement: Placement, cache: RowCache, *, columns: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> ModelOutput:
        """One call over ``cache``; logits of ``columns`` (of every request of the call)."""
        assert self._cache_name is not None, "only models with a cache are called with one"
        self.check_layers(hidden_layers)
        cache.announce(placement)
        if self._lean is not None:
            entries = _state_entries(hidden_layers)
            with growing_lengths():
                logits_BCV, states = self._lean(placement, cache, columns=columns, wanted_states=entries)
            return ModelOutput(logits_BCV=logits_BCV, hidden_BQD=torch.cat(states, dim=-1) if states else None)
        arguments: dict[str, object] = {
            "input_ids": placement.ids_BQ,
            "attention_mask": placement.mask_B1QW,
            self._cache_name: cache,
            "use_cache": True,
        }
        if self._takes_positions:
            arguments["position_ids"] = placement.positions_BQ
        return self._call(arguments, columns=columns, hidden_layers=hidden_layers)

    @torch.no_grad()
    def uncached(
        self, ids_BQ: torch.Tensor, *, columns: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> ModelOutput:
        """Whole texts of one length from their beginning, as the model itself runs them."""
        self.check_layers(hidden_layers)
        arguments: dict[str, object] = {"input_ids": ids_BQ, "use_cache": False}
        if self._takes_mask:
            # Nothing is padding, whatever ids the text has.
            arguments["attention_mask"] = torch.ones_like(ids_BQ)
        return self._call(arguments, columns=columns, hidden_layers=hidden_layers)

    def _call(
        self, arguments: dict[str, object], *, columns: Sequence[int], hidden_layers: Sequence[int]
    ) -> ModelOutput:
        columns_C = torch.tensor(columns, dtype=torch.int64, device=self.device)
        if self._takes_columns:
            arguments["logits_to_keep"] = columns_C
        if hidden_layers:
            arguments["output_hidden_states"] = True
        with growing_lengths():
            output = self.model(**arguments, return_dict=True)
        logits_BCV = output.logits if self._takes_columns else output.logits[:, columns_C]
        hidden_BQD = None
        if hidden_layers:
            states = [output.hidden_states[entry] for entry in _state_entries(hidden_layers)]
            hidden_BQD = torch.cat(states, dim=-1)
        return ModelOutput(logits_BCV=logits_BCV, hidden_BQD=hidden_BQD)

    def _context(self, asked: int | None) -> int:
        try:
            allowed = self.config.max_position_embeddings
        except AttributeError:
            allowed = None
        if not isinstance(allowed, int) or allowed < 1:
            if asked is None:
                raise ConfigError(
                    f"{self.name} does not say how long a text may be: say it (conf: target.params.max_context)"
                )
            allowed = None
        if asked is None:
            return allowed
        return integer("max_context", asked, low=2, high=allowed, where="target.params.max_context")


def _state_entries(hidden_layers: Sequence[int]) -> list[int]:
    """Entries of transformers' hidden states: 0 is the embedding, the last one has gone through the final norm."""
    return [LAST_LAYER if layer == LAST_LAYER else layer + 1 for layer in hidden_layers]
