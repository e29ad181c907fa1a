"""FewRowsHead: from the final streams of a few float32 tokens to logits on the CPU; same mathematics as the models'."""

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.few_rows.products import product_of
from backends.deepseek_v4.hyper_connections import HyperWeights


class FewRowsHead:
    """Fused copies of the weights of the last collapse, the last norm and the head; made once, never trained."""

    def __init__(
        self,
        hyper: HyperWeights,
        norm_weight: torch.Tensor,
        head_weight: torch.Tensor,
        config: DeepseekV4Config,
        *,
        half: bool,
    ) -> None:
        """``half`` allows the head's weight in half precision; see ``product_of``."""
        self._width = config.hc_mult * config.hidden_size
        scale = hyper.scale.detach().float() * self._width**0.5
        self._fn_t = (hyper.fn.detach().float() * scale).t().contiguous()
        self._base, self._hc_eps = hyper.base.detach().float().clone(), config.hc_eps
        self._floor = torch.tensor((self._width * config.rms_norm_eps) ** 0.5)
        self._norm = RowNorm(norm_weight, config.rms_norm_eps)
        self._head = product_of([head_weight], half=half)

    def __call__(self, streams_TSD: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [T, V]."""
        flat_TF = streams_TSD.reshape(-1, self._width)
        norm_T1 = torch.linalg.vector_norm(flat_TF, dim=1, keepdim=True)
        mixes_TS = torch.mm(flat_TF, self._fn_t).div_(torch.hypot(norm_T1, self._floor)).add_(self._base)
        shares_T1S = mixes_TS.sigmoid_().add_(self._hc_eps).unsqueeze(1)
        return self._head(self._norm(torch.bmm(shares_T1S, streams_TSD).squeeze(1)))
