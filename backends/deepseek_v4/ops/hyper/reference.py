"""Hyper-connections of a packed pass in plain torch."""

import torch
import torch.nn.functional as F

from backends.deepseek_v4.hyper_connections import MixedIn
from backends.deepseek_v4.hyper_connections import mix_out as join_output
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.hyper.values import MixedInput
from backends.deepseek_v4.ops.sinkhorn.reference import sinkhorn
from backends.deepseek_v4.ops.sums import sum_in_order


def mix_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    streams_TSD = streams_TSD.float()
    products_TSS = streams_TSD @ streams_TSD.transpose(1, 2)
    return torch.cat((F.linear(streams_TSD.flatten(1), fn_MX), products_TSS.flatten(1)), dim=-1).unsqueeze(-1)


def mix_out(
    parts_QTD: torch.Tensor,
    streams_TSD: torch.Tensor,
    post_TS: torch.Tensor,
    comb_TSS: torch.Tensor,
    fn_MX: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    output_TD = sum_in_order(parts_QTD).to(streams_TSD.dtype)
    new_TSD = join_output(output_TD, streams_TSD, MixedIn(input=output_TD, post=post_TS, comb=comb_TSS))
    return new_TSD, mix_dots(new_TSD, fn_MX)


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
) -> MixedInput:
    num = streams_TSD.shape[1]
    mixes_TM = _mixes(dots_TNP, streams_TSD, eps)
    pre_mix, post_mix, comb_mix = mixes_TM.split((num, num, num * num), dim=-1)
    pre_base, post_base, comb_base = base.split((num, num, num * num))
    pre_scale, post_scale, comb_scale = scale.unbind(0)
    pre_TS = torch.sigmoid(pre_mix * pre_scale + pre_base) + hc_eps
    post_TS = 2 * torch.sigmoid(post_mix * post_scale + post_base)
    logits_TSS = (comb_mix * comb_scale + comb_base).unflatten(-1, (num, num))
    return MixedInput(
        x_TD=_weighted_sum(streams_TSD, pre_TS, norm_weight_D, eps),
        post_TS=post_TS,
        comb_TSS=sinkhorn(logits_TSS, num_rounds, hc_eps),
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
) -> torch.Tensor:
    pre_TS = torch.sigmoid(_mixes(dots_TNP, streams_TSD, eps) * scale + base) + hc_eps
    return _weighted_sum(streams_TSD, pre_TS, norm_weight_D, eps)


def _mixes(dots_TNP: torch.Tensor, streams_TSD: torch.Tensor, eps: float) -> torch.Tensor:
    """Projections [T, M] of the jointly normalised streams."""
    dots_TN, (_, num, width) = dots_TNP.sum(-1), streams_TSD.shape
    mixes_TM, products_TX = dots_TN.split((dots_TN.shape[1] - num * num, num * num), dim=-1)
    squares_T1 = products_TX.unflatten(-1, (num, num)).diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
    return mixes_TM * torch.rsqrt(squares_T1 / (num * width) + eps)


def _weighted_sum(
    streams_TSD: torch.Tensor, pre_TS: torch.Tensor, norm_weight_D: torch.Tensor, eps: float
) -> torch.Tensor:
    summed_TD = (pre_TS.unsqueeze(-1) * streams_TSD.float()).sum(-2).to(streams_TSD.dtype)
    return rms_norm(summed_TD, norm_weight_D, eps)
