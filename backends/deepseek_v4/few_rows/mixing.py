"""HostMixing: hyper-connections of one sub-block for a few tokens on the CPU.

The two dozen numbers that decide how streams mix are computed in Python floats, where a token costs some 20 us, or
from four tokens on in NumPy, where a call costs some 70 us. The streams are moved by one product each way. Same
mathematics as ``hyper_connections``.
"""

from math import sqrt, tanh

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
        self._fn_t = weights.fn.detach().float().t().contiguous()
        base = weights.base.tolist()
        self._pre_base, self._post_base, self._comb_base = base[:num], base[num : 2 * num], base[2 * num :]
        self._scales = weights.scale.tolist()
        self._base_M, self._scale_M = np.array(base, dtype=np.float32), _per_mix(self._scales, num)
        self._num, self._width = num, num * config.hidden_size
        self._sinkhorn = BatchedSinkhorn(num, config.hc_sinkhorn_iters, config.hc_eps)
        self._rounds, self._hc_eps, self._rms_eps = config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps

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
            self._decide(mixes, 1.0 / sqrt(norm * norm / self._width + self._rms_eps), pre, out)
        pre_T1S = float_tensor(pre).view(-1, 1, num)
        return torch.bmm(pre_T1S, streams_TSD).squeeze(1), float_tensor(out).view(-1, num, num + 1)

    def _decide_many(self, mixes_TM: np.ndarray, norm_T: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """``_decide`` of all tokens at once: input weights [T, 1, S] and mix [T, S, S + 1]."""
        num, num_tokens = self._num, len(norm_T)
        rms_T1 = np.sqrt(norm_T * norm_T / self._width + self._rms_eps)[:, None]
        logits_TM = mixes_TM * self._scale_M
        logits_TM /= rms_T1
        logits_TM += self._base_M
        gates_TG = np.tanh(0.5 * logits_TM[:, : 2 * num])
        mix_TSR = np.empty((num_tokens, num, num + 1), dtype=np.float32)
        comb_TC = self._sinkhorn(logits_TM[:, 2 * num :])
        mix_TSR[:, :, :num] = comb_TC.reshape(num_tokens, num, num).transpose(0, 2, 1)
        mix_TSR[:, :, num] = 1.0 + gates_TG[:, num:]
        pre_TS = 0.5 * gates_TG[:, :num] + (0.5 + self._hc_eps)
        return torch.from_numpy(pre_TS).unsqueeze(1), torch.from_numpy(mix_TSR)

    def _decide(self, mixes: list[float], rms: float, pre: list[float], out: list[float]) -> None:
        """Append one token's S input weights and its S rows of (S stream shares, share of the output)."""
        num, floor = self._num, self._hc_eps + 0.5
        # sigmoid(x) as 0.5 + 0.5 * tanh(x / 2), which cannot overflow.
        half_pre, half_post, s_comb = (scale * rms for scale in self._scales)
        half_pre, half_post = 0.5 * half_pre, 0.5 * half_post
        pre += [floor + 0.5 * tanh(m * half_pre + 0.5 * b) for m, b in zip(mixes, self._pre_base, strict=False)]
        logits = [m * s_comb + b for m, b in zip(mixes[2 * num :], self._comb_base, strict=True)]
        comb = scalar.sinkhorn(logits, self._rounds, self._hc_eps)
        for i, base in enumerate(self._post_base):
            out += comb[i::num]
            out.append(1.0 + tanh(mixes[num + i] * half_post + 0.5 * base))


def _per_mix(scales: list[float], num: int) -> np.ndarray:
    """The scale of every mix: S input weights, S output weights, S * S stream weights."""
    return np.repeat(np.array(scales, dtype=np.float32), (num, num, num * num))


def float_tensor(values: list[float]) -> torch.Tensor:
    """A float32 vector; through NumPy, which is several times faster than ``torch.tensor`` for a short list."""
    return torch.from_numpy(np.array(values, dtype=np.float32))


def mix_out(output_TD: torch.Tensor, streams_TSD: torch.Tensor, mix_TSR: torch.Tensor) -> torch.Tensor:
    """New streams [T, S, D] from a sub-block's output, the old streams and what ``mix_in`` decided."""
    return torch.bmm(mix_TSR, torch.cat([streams_TSD, output_TD.unsqueeze(1)], dim=1))
