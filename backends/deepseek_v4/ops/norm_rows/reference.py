"""RMS normalisation of rows in plain torch."""

import torch

from backends.deepseek_v4.norms import rms_norm


def norm_rows(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x_XD, weight_D, eps)
