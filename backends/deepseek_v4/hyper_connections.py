"""Manifold-constrained hyper-connections (mHC): how S residual streams enter and leave a sub-block.

Everything that decides weights runs in float32, whatever autocast says (arXiv:2512.24880; the order of the
Sinkhorn steps is that of the published reference code).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.ops.sinkhorn import sinkhorn


@dataclass(frozen=True, kw_only=True, slots=True)
class HyperWeights:
    """Parameters of one sub-block's connections, float32.

    fn     [2S + S*S, S*D] for a sub-block, [S, S*D] for the head
    base   [2S + S*S] or [S]
    scale  [3] or [1]
    """

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedIn:
    """What a sub-block gets and how its output returns.

    input  [..., D] weighted sum of the streams, in the streams' dtype
    post   [..., S] float32, share of the output that each stream receives
    comb   [..., S, S] float32, entry [s, m]: how much of old stream s goes to new stream m
    """

    input: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


def mix_in(streams: torch.Tensor, weights: HyperWeights, config: DeepseekV4Config) -> MixedIn:
    """Collapse ``streams`` [..., S, D] to the input of a sub-block and decide how its output is spread."""
    num = streams.shape[-2]
    with torch.autocast(streams.device.type, enabled=False):
        mixes = _mixes(streams, weights.fn, config.rms_norm_eps)
        pre_mix, post_mix, comb_mix = mixes.split((num, num, num * num), dim=-1)
        pre_base, post_base, comb_base = weights.base.float().split((num, num, num * num))
        pre_scale, post_scale, comb_scale = weights.scale.float().unbind(0)
        pre = torch.sigmoid(pre_mix * pre_scale + pre_base) + config.hc_eps
        post = 2 * torch.sigmoid(post_mix * post_scale + post_base)
        logits = (comb_mix * comb_scale + comb_base).unflatten(-1, (num, num))
        comb = sinkhorn(logits, config.hc_sinkhorn_iters, config.hc_eps)
        return MixedIn(input=_weighted_sum(streams, pre), post=post, comb=comb)


def mix_out(output: torch.Tensor, streams: torch.Tensor, mixed: MixedIn) -> torch.Tensor:
    """New streams [..., S, D]: ``new[m] = post[m] * output + sum_s comb[s, m] * streams[s]``, in the streams' dtype."""
    with torch.autocast(streams.device.type, enabled=False):
        kept = (mixed.comb.unsqueeze(-1) * streams.float().unsqueeze(-2)).sum(-3)
        added = mixed.post.unsqueeze(-1) * output.float().unsqueeze(-2)
        return (kept + added).to(streams.dtype)


def collapse(streams: torch.Tensor, weights: HyperWeights, config: DeepseekV4Config) -> torch.Tensor:
    """Weighted sum [..., D] of ``streams`` [..., S, D] before the final norm; weights are not normalised."""
    with torch.autocast(streams.device.type, enabled=False):
        mixes = _mixes(streams, weights.fn, config.rms_norm_eps)
        pre = torch.sigmoid(mixes * weights.scale.float() + weights.base.float()) + config.hc_eps
        return _weighted_sum(streams, pre)


def _mixes(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """Projection of the jointly normalised, flattened streams, float32 [..., rows of fn]."""
    flat = streams.flatten(-2).float()
    return F.linear(flat, fn.float()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _weighted_sum(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (weights.unsqueeze(-1) * streams.float()).sum(-2).to(streams.dtype)
