"""MixedInput: what a sub-block gets and how its output returns to the streams."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedInput:
    """Result of ``mix_in``.

    x_TD      normalised weighted sum of the streams, in their dtype
    post_TS   float32, share of the output that each stream receives
    comb_TSS  float32, entry [s, m]: how much of old stream s goes to new stream m
    """

    x_TD: torch.Tensor
    post_TS: torch.Tensor
    comb_TSS: torch.Tensor
