"""What ``finish_inputs`` is told of a layer; how its columns follow each other."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressorInputs:
    """A compressor's share of the projected inputs.

    ratio     tokens between two compressed rows
    channels  C values, then C scores of a token
    ape       float32 [ratio, C], added to the scores
    """

    ratio: int
    channels: int
    ape: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerInputs:
    """The projected inputs of a layer, whose columns are, in this order:

    query latent [q_lora], key [head_dim], the compressor's values and scores [2 * C], the same of the indexer's
    compressor, the indexer's head weights [index_heads].

    q_norm, kv_norm  float32 weights of the norms of the first two
    eps              of these norms
    compressor       None in window-only layers
    index            None outside of CSA layers, as are ``index_heads`` and ``index_scale`` 0
    index_scale      factor of the head weights
    """

    q_lora: int
    head_dim: int
    q_norm: torch.Tensor
    kv_norm: torch.Tensor
    eps: float
    compressor: CompressorInputs | None
    index: CompressorInputs | None
    index_heads: int
    index_scale: float

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the five blocks."""
        states = tuple(0 if each is None else 2 * each.channels for each in (self.compressor, self.index))
        return (self.q_lora, self.head_dim, *states, self.index_heads)

    @property
    def num_columns(self) -> int:
        return sum(self.widths)
