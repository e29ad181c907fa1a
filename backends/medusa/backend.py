"""MedusaBackend: Medusa heads as ``specdec.api.DraftBackend``; a step is the next head, whatever token was drafted."""

import torch

from backends.medusa.model import HeadInput, MedusaModel
from specdec.api import LAST_LAYER, CacheGroupSpec, DraftInput
from specdec.errors import MetadataError


class MedusaBackend:
    """Keeps the states of the newest committed rows between the calls of one round, and nothing beyond it."""

    cache_groups: tuple[CacheGroupSpec, ...] = ()
    hidden_layers: tuple[int, ...] = (LAST_LAYER,)

    def __init__(self, model: MedusaModel, head_input: HeadInput) -> None:
        self.model = model.eval()
        self._head_input = head_input
        self._states_BD: torch.Tensor | None = None
        self._number = 0

    @property
    def max_draft_tokens(self) -> int:
        """Most tokens that one round can draft."""
        return self.model.config.num_heads

    @torch.no_grad()
    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Logits float32 [B, V] of the first head; raises MetadataError without the target's last states."""
        if inputs.hidden_TD is None:
            raise MetadataError(
                "Medusa drafting needs the target's last states (hidden_layers=(LAST_LAYER,)), got none"
            )
        self._states_BD = self._head_input(inputs.hidden_TD[inputs.newest_rows()])
        self._number = 0
        return self.model.logits(self._states_BD, 0)

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """Nothing to prepare: heads have no positions."""

    @torch.no_grad()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Logits float32 [B, V] of the next head; raises MetadataError before ``begin_draft`` and beyond the last."""
        return self._next()

    @torch.no_grad()
    def forward_level(
        self, seq_lens_B: torch.Tensor, tokens_BM: torch.Tensor, parents_BM: torch.Tensor
    ) -> torch.Tensor:
        """What follows each of M nodes of a level, float32 [B, M, V]: the next head's logits for every one of them."""
        return self._next()[:, None].expand(-1, tokens_BM.shape[1], -1)

    def _next(self) -> torch.Tensor:
        if self._states_BD is None or self._number + 1 >= self.max_draft_tokens:
            raise MetadataError(f"a round drafts at most {self.max_draft_tokens} tokens, begun with begin_draft")
        self._number += 1
        return self.model.logits(self._states_BD, self._number)
