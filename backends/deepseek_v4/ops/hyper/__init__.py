"""Hyper-connections of a packed pass in three steps, and which implementation runs them.

``mix_dots`` (or ``mix_out``, which ends with it) projects the streams; ``mix_in`` decides from the projections how the
streams mix and makes the input of a sub-block; ``mix_out`` adds the sub-block's output to the streams. The
mathematics is that of ``hyper_connections`` (arXiv:2512.24880). Projections are exchanged as P partial sums,
``dots_TNP`` float32 [T, N, P], N = M + S * S: the products of a token's streams with the M rows of ``fn``, then those
of its streams with each other. From these ``mix_in`` knows the length of any weighted sum of the streams before it
has added them up.

Letters beside those of ``specdec.api``: S streams, M = 2 * S + S * S rows of ``fn`` (S for the head), Q parts of an
output. S is a power of two.

Streams in bf16: the kernels take the length in the norm of a sub-block's input from the sum before it is rounded to
bf16, the reference from the rounded one. The lengths differ by one part in some thousands at most.
"""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.hyper import reference
from backends.deepseek_v4.ops.hyper.values import MixedInput

__all__ = ["MixedInput", "mix_dots", "mix_head", "mix_in", "mix_out"]


def mix_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor, *, kernels: Kernels) -> torch.Tensor:
    """Partial projections [T, N, P] of streams; their sum over P is that of the whole.

    streams_TSD  float32 or bf16, values of a stream adjacent
    fn_MX        float32 [M, S * D], contiguous
    """
    if kernels is Kernels.REFERENCE:
        return reference.mix_dots(streams_TSD, fn_MX)
    from backends.deepseek_v4.ops.hyper import kernel_out

    return kernel_out.mix_dots(streams_TSD, fn_MX)


def mix_out(
    parts_QTD: torch.Tensor,
    streams_TSD: torch.Tensor,
    post_TS: torch.Tensor,
    comb_TSS: torch.Tensor,
    fn_MX: torch.Tensor,
    *,
    kernels: Kernels,
) -> tuple[torch.Tensor, torch.Tensor]:
    """New streams [T, S, D] in the streams' dtype, and ``mix_dots`` of them with the next sub-block's ``fn_MX``.

    The sub-block's output is the sum of ``parts_QTD`` (float32 or bf16, in order, values adjacent), rounded to the
    streams' dtype; ``post_TS`` and ``comb_TSS`` are those of ``MixedInput``.
    """
    if kernels is Kernels.REFERENCE:
        return reference.mix_out(parts_QTD, streams_TSD, post_TS, comb_TSS, fn_MX)
    from backends.deepseek_v4.ops.hyper import kernel_out

    return kernel_out.mix_out(parts_QTD, streams_TSD, post_TS, comb_TSS, fn_MX)


def mix_in(
    dots_TNP: torch.Tensor,
    streams_TSD: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_weight_D: torch.Tensor,
    *,
    num_rounds: int,
    eps: float,
    hc_eps: float,
    kernels: Kernels,
) -> MixedInput:
    """The normalised input of a sub-block and how its output will be spread.

    base [M], scale [3], norm_weight_D [D]  float32
    num_rounds, hc_eps                      Sinkhorn rounds and the eps in them
    eps                                     of the norms
    """
    if kernels is Kernels.REFERENCE:
        return reference.mix_in(
            dots_TNP, streams_TSD, base, scale, norm_weight_D, num_rounds=num_rounds, eps=eps, hc_eps=hc_eps
        )
    from backends.deepseek_v4.ops.hyper import kernel_in

    return kernel_in.mix_in(
        dots_TNP, streams_TSD, base, scale, norm_weight_D, num_rounds=num_rounds, eps=eps, hc_eps=hc_eps
    )


def mix_head(
    dots_TNP: torch.Tensor,
    streams_TSD: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_weight_D: torch.Tensor,
    *,
    eps: float,
    hc_eps: float,
    kernels: Kernels,
) -> torch.Tensor:
    """Input [T, D] of the output head: the weighted sum of the streams (``base`` [S], ``scale`` [1]), normalised."""
    if kernels is Kernels.REFERENCE:
        return reference.mix_head(dots_TNP, streams_TSD, base, scale, norm_weight_D, eps=eps, hc_eps=hc_eps)
    from backends.deepseek_v4.ops.hyper import kernel_in

    return kernel_in.mix_head(dots_TNP, streams_TSD, base, scale, norm_weight_D, eps=eps, hc_eps=hc_eps)
