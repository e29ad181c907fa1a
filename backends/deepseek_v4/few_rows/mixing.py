"""HostMixing: hyper-connections of one sub-block for a few tokens on the CPU.

The two dozen numbers that decide how streams mix are computed in Python floats, where a token costs some 20 us,
and the streams are moved by one product each way. Same mathematics as ``hyper_connections``.
"""

from math import sqrt, tanh

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.hyper_connections import HyperWeights
from backends.deepseek_v4.ops.sinkhorn import scalar


class HostMixing:
    """Copies of one sub-block's hyper-connection weights; made once, never trained."""

    def __init__(self, weights: HyperWeights, config: DeepseekV4Config) -> None:
        self._fn_t = weights.fn.detach().float().t().contiguous()
        self._base = weights.base.tolist()
        self._scale = weights.scale.tolist()
        self._num = config.hc_mult
        self._rounds, self._hc_eps, self._rms_eps = config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps

    def mix_in(self, streams_TSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input [T, D] of the sub-block, and [T, S, S + 1] that ``mix_out`` applies."""
        num, flat_TF = self._num, streams_TSD.flatten(1)
        norms = torch.linalg.vector_norm(flat_TF, dim=1).tolist()
        width = flat_TF.shape[1]
        pre: list[float] = []
        out: list[float] = []
        for mixes, norm in zip(torch.mm(flat_TF, self._fn_t).tolist(), norms, strict=True):
            self._decide(mixes, 1.0 / sqrt(norm * norm / width + self._rms_eps), pre, out)
        pre_T1S = torch.tensor(pre).view(-1, 1, num)
        return torch.bmm(pre_T1S, streams_TSD).squeeze(1), torch.tensor(out).view(-1, num, num + 1)

    def _decide(self, mixes: list[float], rms: float, pre: list[float], out: list[float]) -> None:
        """Append one token's S input weights and its S rows of (S stream shares, share of the output)."""
        num, base = self._num, self._base
        s_pre, s_post, s_comb = (scale * rms for scale in self._scale)
        for i in range(num):
            pre.append(0.5 + 0.5 * tanh(0.5 * (mixes[i] * s_pre + base[i])) + self._hc_eps)
        logits = [
            [mixes[j] * s_comb + base[j] for j in range(row, row + num)]
            for row in range(2 * num, 2 * num + num * num, num)
        ]
        columns = zip(*scalar.sinkhorn(logits, self._rounds, self._hc_eps), strict=True)
        for i, column in enumerate(columns, start=num):
            out.extend(column)
            out.append(1.0 + tanh(0.5 * (mixes[i] * s_post + base[i])))


def mix_out(output_TD: torch.Tensor, streams_TSD: torch.Tensor, mix_TSR: torch.Tensor) -> torch.Tensor:
    """New streams [T, S, D] from a sub-block's output, the old streams and what ``mix_in`` decided."""
    return torch.bmm(mix_TSR, torch.cat([streams_TSD, output_TD.unsqueeze(1)], dim=1))
