"""FewRowsBlocks: the layers of a model for passes of a few float32 tokens on the CPU, where dispatch is the cost.

A decode pass runs some hundred tiny operations a layer and reads every weight for few rows; fused products, weights
in half precision where that is exact, and host arithmetic for what is a few numbers a token make it several times
faster. Same results as ``Block`` up to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from backends.deepseek_v4.block import Block
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.few_rows.attention import Attend, FewRowsAttention, PassView, whole_turns
from backends.deepseek_v4.few_rows.core import FewRowsCore, outlooks
from backends.deepseek_v4.few_rows.experts import FewRowsExperts
from backends.deepseek_v4.few_rows.mixing import HostMixing, mix_out
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.few_rows.selection import visible_counts
from backends.deepseek_v4.paged import PagedPass
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rope


class FewRowsBlock:
    """One layer; holds fused copies of its weights."""

    def __init__(self, block: Block, *, constant_shapes: bool) -> None:
        config = block.config
        self._attn_norm = RowNorm(block.attn_norm.weight, config.rms_norm_eps)
        self._ffn_norm = RowNorm(block.ffn_norm.weight, config.rms_norm_eps)
        self._attn_mixing, self._ffn_mixing = HostMixing(block.hc_attn, config), HostMixing(block.hc_ffn, config)
        self._attention = FewRowsAttention(block.attn, constant_shapes=constant_shapes)
        self._experts = FewRowsExperts(block.ffn, all_experts=constant_shapes, half=not constant_shapes)

    def __call__(
        self, layer: int, streams_TSD: torch.Tensor, token_ids: list[int], paged: PagedPass, view: PassView
    ) -> torch.Tensor:
        """New streams [T, S, D]; writes the caches of pool layer ``layer``."""
        x_TD, mix_TSR = self._attn_mixing.mix_in(streams_TSD)
        streams_TSD = mix_out(self._attention(layer, self._attn_norm(x_TD), paged, view), streams_TSD, mix_TSR)
        x_TD, mix_TSR = self._ffn_mixing.mix_in(streams_TSD)
        return mix_out(self._experts(self._ffn_norm(x_TD), token_ids), streams_TSD, mix_TSR)


class FewRowsBlocks:
    """All layers of a stack over the caches of one pool."""

    def __init__(
        self, blocks: Sequence[Block], config: DeepseekV4Config, pool: CachePool, *, constant_shapes: bool
    ) -> None:
        """``constant_shapes``: products whose rows do not depend on each other in passes of one length."""
        self._config = config
        self._layers = tuple(FewRowsBlock(block, constant_shapes=constant_shapes) for block in blocks)
        is_plain = not constant_shapes and FewRowsCore.supports(pool)
        self._core = FewRowsCore(pool) if is_plain else None

    def runner(self, paged: PagedPass, tokens_T: torch.Tensor) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """What runs one layer of a pass: (layer, streams [T, S, D]) -> streams."""
        window, compress = self._views(paged)
        per_layer = [compress if kind.compresses else window for kind in paged.pool.kinds]
        token_ids = tokens_T.tolist()
        return lambda i, streams_TSD: self._layers[i](i, streams_TSD, token_ids, paged, per_layer[i])

    def _views(self, paged: PagedPass) -> tuple[PassView, PassView | None]:
        """The pass as window-only layers see it, and as compressing layers do."""
        ropes, positions_T = paged.ropes, paged.plan.positions_T
        attend = self._attend(paged)
        window = self._view(ropes.window, attend)
        if ropes.compress is None:
            return window, None
        phases = {kind: positions_T % kind.ratio for kind in paged.pool.layout.compressing_kinds}
        index = whole_turns(ropes.compress, self._config.index_head_dim)
        counts = tuple(visible_counts(segment) for segment in paged.plan.segments)
        return window, replace(self._view(ropes.compress, attend), index=index, phases=phases, counts=counts)

    def _view(self, rope: Rope, attend: Attend) -> PassView:
        heads = whole_turns(rope, self._config.head_dim)
        return PassView(heads=heads, back=heads.conj().resolve_conj(), index=None, phases={}, counts=(), attend=attend)

    def _attend(self, paged: PagedPass) -> Attend:
        if self._core is None:
            return paged.attend
        seen = outlooks(paged.plan, paged.pool.kinds, self._config.num_attention_heads)
        return paged.attend if seen is None else partial(self._core, seen)


def supports(model: torch.nn.Module) -> bool:
    """Whether a model's weights are float32 on the CPU."""
    return all(p.device.type == "cpu" and p.dtype == torch.float32 for p in model.parameters())
