"""VocabularyMap: token ids of a target in the vocabulary of a draft model, by what the tokens spell; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specdec.errors import ConfigError

NO_COUNTERPART = -1
CPU = torch.device("cpu")
# How tokenizers write a leading space: SentencePiece, and byte-level BPE.
SPACES = str.maketrans({"▁": " ", "Ġ": " "})


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyMap:
    """Which draft token stands for which target token.

    to_draft_V  int64 draft id of each target id; -1 where there is none: such a token is never drafted
    filler_id   draft id that is fed in place of a token without a counterpart
    """

    to_draft_V: torch.Tensor
    filler_id: int = 0

    @property
    def num_shared(self) -> int:
        """Target tokens that can be drafted."""
        return int((self.to_draft_V != NO_COUNTERPART).sum())

    def ids(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Draft ids of target ids; int64 of the same shape."""
        ids_T = self.to_draft_V[tokens_T]
        return ids_T.masked_fill(ids_T == NO_COUNTERPART, self.filler_id)

    def logits(self, logits_BX: torch.Tensor) -> torch.Tensor:
        """Logits over the draft's vocabulary -> float32 over the target's; -inf where there is no counterpart."""
        lacking_V = self.to_draft_V == NO_COUNTERPART
        return logits_BX.float()[:, self.to_draft_V.clamp(min=0)].masked_fill(lacking_V, float("-inf"))


def same_ids(*, target_size: int, draft_size: int, device: torch.device = CPU) -> VocabularyMap:
    """One tokenizer, and maybe another padding: ids beyond the draft's vocabulary have no counterpart."""
    ids_V = torch.arange(target_size, device=device)
    return VocabularyMap(to_draft_V=ids_V.masked_fill(ids_V >= draft_size, NO_COUNTERPART))


def map_by_spelling(
    target: Mapping[str, int],
    draft: Mapping[str, int],
    *,
    target_size: int,
    draft_size: int,
    filler_id: int = 0,
    device: torch.device = CPU,
) -> VocabularyMap:
    """Match tokens that are spelled alike, whatever sign stands for a leading space.

    target, draft  ids by token; sizes are those of the models' logits

    Raises ConfigError when no token is shared.
    """
    by_text = {token.translate(SPACES): index for token, index in draft.items() if index < draft_size}
    to_draft = [NO_COUNTERPART] * target_size
    for token, index in target.items():
        if index < target_size:
            to_draft[index] = by_text.get(token.translate(SPACES), NO_COUNTERPART)
    found = VocabularyMap(to_draft_V=torch.tensor(to_draft, device=device), filler_id=filler_id)
    if not found.num_shared:
        raise ConfigError("target and draft model share no token, so nothing can be drafted (conf: drafter.checkpoint)")
    return found
