"""FrozenTarget: a target's states over whole texts without a cache, for training a head; never trained itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.dense import dense_attention, sequence_ropes
from backends.deepseek_v4.model import DeepseekV4Model
from experiments.deepseek_v4 import LoadedV4
from experiments.targets import Lender, LentWeights, LoadedTarget
from specdec.api import LAST_LAYER
from specdec.errors import UnsupportedError

States = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class FrozenTarget:
    """What the trainers use of a target.

    states  (tokens int64 [B, L], layers) -> the layers' states side by side [B, L, X], each num_streams * D wide, as
            the engine's target gives them to a drafter
    lent    embedding, head and what leads to the head
    """

    states: States
    lent: LentWeights

    @property
    def width(self) -> int:
        """Of one layer's states."""
        return self.lent.num_streams * self.lent.embedding.shape[1]

    def logits(self, last_states: torch.Tensor) -> torch.Tensor:
        """float32 [..., V] of states after the last layer [..., width]."""
        hidden = self.lent.head_input(last_states)
        return torch.nn.functional.linear(hidden.float(), self.lent.head.float())


def frozen(loaded: LoadedTarget) -> FrozenTarget:
    """The target as training sees it; raises UnsupportedError for one that a head cannot be trained for."""
    if isinstance(loaded, LoadedV4):
        model = loaded.models.target
        return FrozenTarget(states=lambda tokens, layers: v4_states(model, tokens, layers), lent=loaded.lend())
    if not isinstance(loaded, Lender):
        raise UnsupportedError("heads are trained for targets hf and deepseek_v4; this target lends no states")
    # Imported here, since a V4 target does without transformers.
    from experiments.training.heads.frozen_hf import hf_target

    return hf_target(loaded)


@torch.no_grad()
def v4_states(model: DeepseekV4Model, tokens_BL: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
    """Flattened streams [B, L, len(layers) * S * D] after each of ``layers``; texts may be padded at their end."""
    ropes = sequence_ropes(model, tokens_BL.shape[1], tokens_BL.device)
    last = len(model.layers) - 1
    wanted = [last if layer == LAST_LAYER else layer for layer in layers]
    kept: dict[int, torch.Tensor] = {}

    def step(attention: Attention, x: torch.Tensor) -> torch.Tensor:
        return dense_attention(attention, x, ropes, model.config.sliding_window)[0]

    streams = model.embed_streams(tokens_BL)
    for number, block in enumerate(model.layers):
        streams = block(streams, tokens_BL, step)
        if number in wanted:
            kept[number] = streams.flatten(-2)
    return torch.cat([kept[layer] for layer in wanted], dim=-1)
