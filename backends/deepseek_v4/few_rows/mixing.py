"""HostMixing: hyper-connections of one sub-block for a few tokens on the CPU.

The two dozen numbers that decide how streams mix are computed in Python floats, where a token costs some 20 us, or
from four tokens on in NumPy, where a call costs some 70 us. The streams are moved by one product each way. Same
mathematics as ``hyper_connections``.
"""

from collections.abc import Sequence
from math import hypot, tanh

import numpy as np
import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.hyper_connections import HyperWeights
from backends.deepseek_v4.ops.sinkhorn import scalar
from backends.deepseek_v4.ops.sinkhorn.batched import BatchedSinkhorn

# From this many tokens on NumPy is faster than Python floats.
MANY_TOKENS = 4


class HostMixing:
    """Copies of one sub-block's hyper-connection weights; made once, never trained."""

    def __init__(self, weights: HyperWeights, config: DeepseekV4Config) -> None:
        num = config.hc_mult
        self._num, self._width = num, num * config.hidden_size
        self._rounds, self._hc_eps = config.hc_sinkhorn_iters, config.hc_eps
        self._sinkhorn = BatchedSinkhorn(num, self._rounds, self._hc_eps)
        # A logit is scale * mix * sqrt(width) / hypot(|streams|, floor) + base; a sigmoid takes half of it.
        self._floor = (self._width * config.rms_norm_eps) ** 0.5
        factor_M = np.repeat([0.5, 0.5, 1.0], (num, num, num * num))
        scale_M = np.repeat(weights.scale.tolist(), (num, num, num * num)) * factor_M * self._width**0.5
        base_M = np.array(weights.base.tolist()) * factor_M
        self._fn_t = (weights.fn.detach().double() * torch.from_numpy(scale_M)[:, None]).float().t().contiguous()
        self._base_M, self._base = base_M.astype(np.float32), base_M.tolist()

    def mix_in(self, streams_TSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input [T, D] of the sub-block, and [T, S, S + 1] that ``mix_out`` applies."""
        num, flat_TF = self._num, streams_TSD.reshape(-1, self._width)
        norm_T, mixes_TM = torch.linalg.vector_norm(flat_TF, dim=1), torch.mm(flat_TF, self._fn_t)
        if len(flat_TF) >= MANY_TOKENS:
            pre_T1S, mix_TSR = self._decide_many(mixes_TM.numpy(), norm_T.numpy())
            return torch.bmm(pre_T1S, streams_TSD).squeeze(1), mix_TSR
        pre: list[float] = []
        out: list[float] = []
        for mixes, norm in zip(mixes_TM.tolist(), norm_T.tolist(), strict=True):
            self._decide(mixes, 1.0 / hypot(norm, self._floor), pre, out)
        pre_T1S = float_tensor(pre).view(-1, 1, num)
        return torch.bmm(pre_T1S, streams_TSD).squeeze(1), float_tensor(out).view(-1, num, num + 1)

    def _decide_many(self, mixes_TM: np.ndarray, norm_T: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """``_decide`` of all tokens at once: input weights [T, 1, S] and mix [T, S, S + 1]."""
        num, num_tokens = self._num, len(norm_T)
        logits_TM = mixes_TM / np.hypot(norm_T, self._floor)[:, None]
        logits_TM += self._base_M
        gates_TG = np.tanh(logits_TM[:, : 2 * num])
        mix_TSR = np.empty((num_tokens, num, num + 1), dtype=np.float32)
        comb_TSS = self._sinkhorn(logits_TM[:, 2 * num :]).reshape(num_tokens, num, num)
        mix_TSR[:, :, :num] = comb_TSS.transpose(0, 2, 1)
        np.add(gates_TG[:, num:], 1.0, out=mix_TSR[:, :, num])
        pre_TS = 0.5 * gates_TG[:, :num]
        pre_TS += 0.5 + self._hc_eps
        return torch.from_numpy(pre_TS).unsqueeze(1), torch.from_numpy(mix_TSR)

    def _decide(self, mixes: list[float], inverse: float, pre: list[float], out: list[float]) -> None:
        """Append one token's S input weights and its S rows of (S stream shares, share of the output)."""
        num, floor = self._num, self._hc_eps + 0.5
        logits = [m * inverse + b for m, b in zip(mixes, self._base, strict=True)]
        # sigmoid(x) is 0.5 + 0.5 * tanh(x / 2), which cannot overflow.
        pre += [floor + 0.5 * tanh(x) for x in logits[:num]]
        comb = scalar.sinkhorn(logits[2 * num :], self._rounds, self._hc_eps)
        for i in range(num):
            out += comb[i::num]
            out.append(1.0 + tanh(logits[num + i]))


def float_tensor(values: Sequence[float]) -> torch.Tensor:
    """A float32 vector; through NumPy, which is several times faster than ``torch.tensor`` for a short list."""
    return torch.from_numpy(np.array(values, dtype=np.float32))


def mix_out(output_TD: torch.Tensor, streams_TSD: torch.Tensor, mix_TSR: torch.Tensor) -> torch.Tensor:
    """New streams [T, S, D] from a sub-block's output, the old streams and what ``mix_in`` decided."""
    return torch.bmm(mix_TSR, torch.cat([streams_TSD, output_TD.unsqueeze(1)], dim=1))
