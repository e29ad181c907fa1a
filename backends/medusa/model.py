"""MedusaModel: heads that each predict one further token from the target's last hidden state; knows no cache.

Head k (from 0) reads the state of position i, as it enters the target's own head, and predicts token i + 2 + k. A head
is residual blocks ``x + SiLU(W x + b)`` and a linear layer, the parameters named as in the public Medusa checkpoints:
``k.j.linear.{weight,bias}`` for block j and ``k.NUM_BLOCKS.weight`` for the linear layer.
Source: Cai et al., Medusa (2024), arXiv:2401.10774.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from specdec.checks import integer, positive_int

WHERE = "config.json of the Medusa heads"
HeadInput = Callable[[torch.Tensor], torch.Tensor]
"""States after the target's last layer [..., W] -> what enters the target's head [..., D]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaConfig:
    """Shape of the heads. Raises ConfigError for values out of range.

    num_heads   tokens that can be drafted
    num_blocks  residual blocks of a head
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_blocks: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_heads"):
            positive_int(name, asdict(self)[name], where=WHERE)
        integer("num_blocks", self.num_blocks, low=0, where=WHERE)

    def to_dict(self) -> dict[str, Any]:
        """The ``config.json`` of public Medusa checkpoints, with the sizes added."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": self.num_heads,
            "medusa_num_layers": self.num_blocks,
            "num_heads": self.num_heads,
            "num_hidden_layers": self.num_blocks,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
        }


class ResidualBlock(nn.Module):
    """``x + SiLU(W x + b)``, which begins as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., D] -> [..., D]."""
        return x + F.silu(self.linear(x))


class MedusaModel(nn.ModuleList):
    """The heads; a list of sequences, so that the parameters have their public names."""

    def __init__(self, config: MedusaConfig) -> None:
        width = config.hidden_size
        blocks = range(config.num_blocks)
        super().__init__(
            nn.Sequential(*(ResidualBlock(width) for _ in blocks), nn.Linear(width, config.vocab_size, bias=False))
            for _ in range(config.num_heads)
        )
        self.config = config

    @torch.no_grad()
    def begin_as(self, head: torch.Tensor) -> None:
        """Start every head as the target's own, a weight [V, D]."""
        for sequence in self:
            sequence[-1].weight.copy_(head)

    def logits(self, head_inputs: torch.Tensor, number: int) -> torch.Tensor:
        """float32 [..., V] of head ``number`` for states [..., D]."""
        return self[number](head_inputs.to(self[number][-1].weight.dtype)).float()
