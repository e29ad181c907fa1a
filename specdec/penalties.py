"""Penalties on repeated tokens, counted position by position within a verify block; knows nothing of noise."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from specdec.api import TreeRows
from specdec.sampling_params import SamplingParams


class Penalties:
    """Repetition, frequency and presence penalties of a batch.

    Holds, per request, how often each token occurred in the output and how often it occurred at all; both follow the
    request's own token list, which the caller only ever appends to.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        tokens: Sequence[Sequence[int]],
        num_prompt: Sequence[int],
        *,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._tokens = tuple(tokens)
        self._num_prompt = tuple(num_prompt)
        self._num_counted = [0] * len(self._tokens)
        self._counts_BV = torch.zeros(len(self._tokens), vocab_size, device=device)
        self._seen_BV = torch.zeros(len(self._tokens), vocab_size, device=device)
        self._repetition_B11 = _column([p.repetition_penalty for p in params], device)
        self._frequency_B11 = _column([p.frequency_penalty for p in params], device)
        self._presence_B11 = _column([p.presence_penalty for p in params], device)

    def apply(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, tree: TreeRows | None = None
    ) -> torch.Tensor:
        """Penalised logits; row j of a request counts its known tokens and its drafted tokens d1..dj.

        ``drafted_BK`` int64 with K >= N - 1, or None for N = 1; entries outside of the vocabulary are not counted.
        Of a ``tree`` row j counts the nodes on its path.
        """
        counts_BNV = self._counts_BV.unsqueeze(1)
        seen_BNV = (self._seen_BV > 0).unsqueeze(1)
        if logits_BNV.shape[1] > 1:
            block_BNV = _block_counts(drafted_BK, tree, logits_BNV.shape[1], logits_BNV.shape[2])
            counts_BNV = counts_BNV + block_BNV
            seen_BNV = seen_BNV | (block_BNV > 0)
        repeated_BNV = torch.where(logits_BNV > 0, logits_BNV / self._repetition_B11, logits_BNV * self._repetition_B11)
        out_BNV = torch.where(seen_BNV, repeated_BNV, logits_BNV)
        out_BNV = out_BNV - self._frequency_B11 * counts_BNV
        return out_BNV - self._presence_B11 * (counts_BNV > 0)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that ``apply`` reads."""
        return self._counts_BV, self._seen_BV, self._repetition_B11, self._frequency_B11, self._presence_B11

    def replace(self, other: "Penalties") -> None:
        """Follow the requests of ``other``, of the same number, in the same tensors."""
        self._tokens, self._num_prompt = other._tokens, other._num_prompt
        self._num_counted = list(other._num_counted)

    def count(self, tokens_BN: torch.Tensor, num_committed_B: torch.Tensor) -> None:
        """Count the leading ``num_committed_B`` of ``tokens_BN`` as output; device work only.

        ``mark_counted`` follows once the requests' lists have them too.
        """
        is_new_BN = torch.arange(tokens_BN.shape[1], device=tokens_BN.device) < num_committed_B.unsqueeze(1)
        tokens_BN = torch.where(is_new_BN, tokens_BN, 0)
        self._counts_BV.scatter_add_(1, tokens_BN, is_new_BN.float())
        self._seen_BV.scatter_add_(1, tokens_BN, is_new_BN.float())

    def mark_counted(self) -> None:
        """Take all known tokens for counted."""
        self._num_counted = [len(tokens) for tokens in self._tokens]

    def follow(self) -> None:
        """Count the tokens that were appended since the last call, on the host."""
        for b, tokens in enumerate(self._tokens):
            first, length = self._num_counted[b], len(tokens)
            if first == length:
                continue
            prompt_end = max(first, self._num_prompt[b])
            new = torch.tensor(tokens[first:], device=self._counts_BV.device)
            self._seen_BV[b].index_add_(0, new, torch.ones_like(new, dtype=torch.float32))
            output = new[prompt_end - first :]
            self._counts_BV[b].index_add_(0, output, torch.ones_like(output, dtype=torch.float32))
            self._num_counted[b] = length


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def _block_counts(drafted_BK: torch.Tensor, tree: TreeRows | None, width: int, vocab_size: int) -> torch.Tensor:
    """float32 [B, N, V]: how often each id occurs among the drafted tokens that row j follows."""
    drafted_BK = drafted_BK[:, : width - 1]
    known_BK = (drafted_BK >= 0) & (drafted_BK < vocab_size)
    ones_BKV = F.one_hot(torch.where(known_BK, drafted_BK, 0), vocab_size) * known_BK.unsqueeze(-1)
    if tree is not None:
        return tree.on_path_BNK.float() @ ones_BKV.float()
    return F.pad(ones_BKV.to(torch.float32).cumsum(dim=1), (0, 0, 1, 0))
