"""choose: the token of each row under position-keyed noise; which implementation."""

from importlib.util import find_spec

import torch

from specdec.noise import VocabularyNoise
from specdec.ops.choose import reference

__all__ = ["choose"]

HAS_TRITON = find_spec("triton") is not None


def choose(
    logits_BNV: torch.Tensor,
    positions_B: torch.Tensor,
    *,
    streams_B: torch.Tensor,
    inverse_temperature_B: torch.Tensor,
    greedy_B: torch.Tensor,
    noise: VocabularyNoise,
) -> torch.Tensor:
    """int64 [B, N]: the first arrival of E / w over w = softmax(logits / temperature), or the argmax of a greedy row.

    logits_BNV             floating point; NaN never wins
    positions_B            int64; row j of a request draws with the noise of position ``positions_B + j``
    streams_B              int64 noise keys of the requests; the salt is ``Salt.TARGET``
    inverse_temperature_B  float32, 1 for a greedy request
    greedy_B               bool

    Ties give the lowest id, and a row without any weight gives id 0. The kernel compares ``logit / temperature`` less
    ``log E`` and needs no softmax: it gives the reference's token unless two ids arrive within rounding of each other
    (of ``logit / temperature``, so that among infinite logits the lowest id wins).
    """
    if logits_BNV.is_cuda and HAS_TRITON:
        # Imported here, since a CPU needs no Triton.
        from specdec.ops.choose import kernel as implementation
    else:
        implementation = reference
    return implementation.choose(
        logits_BNV,
        positions_B,
        streams_B=streams_B,
        inverse_temperature_B=inverse_temperature_B,
        greedy_B=greedy_B,
        noise=noise,
    )
