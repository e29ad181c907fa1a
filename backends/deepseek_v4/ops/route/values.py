"""Routing: the experts of each token of a pass and their weights."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """What a router says of T tokens.

    ids_Tk      int32, k different experts of each token
    weights_Tk  fp32, what their outputs are multiplied by
    """

    ids_Tk: torch.Tensor
    weights_Tk: torch.Tensor
