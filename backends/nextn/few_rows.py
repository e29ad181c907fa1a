"""FewRowsNextN: the draft module for passes of a few float32 rows on the CPU; see ``few_rows.block``."""

import torch
from torch import nn

from backends.deepseek_v4.few_rows.block import FewRowsBlocks
from backends.deepseek_v4.few_rows.head import FewRowsHead
from backends.deepseek_v4.few_rows.norms import RowNorm
from backends.deepseek_v4.few_rows.products import product_of
from backends.deepseek_v4.paged import PagedPass
from backends.deepseek_v4.pool import CachePool
from backends.nextn.model import NextNModel

# Rows of the embedding that are projected at once when the table is made.
TABLE_ROWS = 1024


class FewRowsNextN:
    """Fused copies of the draft module's weights; made once, never trained.

    logits  own streams [B, S, D] -> draft logits, float32 [B, V]

    What a token's embedding adds to the streams depends on the token alone, so it is worked out for the whole
    vocabulary beforehand.
    """

    def __init__(self, model: NextNModel, pool: CachePool, *, embed: nn.Embedding, head: nn.Linear) -> None:
        layer, config = model.layer, model.config
        self._zero_first = config.zero_first_nextn_embedding
        self._blocks = FewRowsBlocks((layer,), config, pool, constant_shapes=False)
        self._streams_norm = RowNorm(layer.hnorm.weight, config.rms_norm_eps)
        self._streams_product = product_of([layer.h_proj.weight])
        self.logits = FewRowsHead(layer.hc_head, layer.norm.weight, head.weight, config, half=True)
        with torch.no_grad():
            parts = [layer.e_proj(layer.enorm(rows)) for rows in embed.weight.split(TABLE_ROWS)]
        self._token_terms_VD = torch.cat(parts)

    def __call__(self, paged: PagedPass, streams_TSD: torch.Tensor, tokens_T: torch.Tensor) -> torch.Tensor:
        """Own streams [T, S, D] from previous streams and the tokens that follow them; writes the draft's cache."""
        terms_TD = torch.embedding(self._token_terms_VD, tokens_T)
        if self._zero_first:
            # The norm of a zero embedding is zero, and so is its product.
            terms_TD = terms_TD.masked_fill((paged.plan.positions_T == 0).unsqueeze(-1), 0.0)
        normed_XD = self._streams_norm(streams_TSD).view(-1, streams_TSD.shape[-1])
        combined_TSD = self._streams_product(normed_XD).view(streams_TSD.shape).add_(terms_TD.unsqueeze(1))
        return self._blocks.runner(paged, tokens_T)(0, combined_TSD)
