"""Penalties on repeated tokens, counted position by position within a verify block; knows nothing of noise."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from specdec.sampling_params import SamplingParams


class Penalties:
    """Repetition, frequency and presence penalties of a batch.

    Holds, per request, how often each token occurred in the output and whether it occurred at all; both follow the
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
        self._seen_BV = torch.zeros(len(self._tokens), vocab_size, dtype=torch.bool, device=device)
        self._repetition_B11 = _column([p.repetition_penalty for p in params], device)
        self._frequency_B11 = _column([p.frequency_penalty for p in params], device)
        self._presence_B11 = _column([p.presence_penalty for p in params], device)

    def apply(self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None) -> torch.Tensor:
        """Penalised logits; row j of a request counts its known tokens and its drafted tokens d1..dj.

        ``drafted_BK`` int64 with K >= N - 1, or None for N = 1; entries outside of the vocabulary are not counted.
        """
        self._follow()
        counts_BNV = self._counts_BV.unsqueeze(1)
        seen_BNV = self._seen_BV.unsqueeze(1)
        if logits_BNV.shape[1] > 1:
            block_BNV = _prefix_counts(drafted_BK, logits_BNV.shape[1], logits_BNV.shape[2])
            counts_BNV = counts_BNV + block_BNV
            seen_BNV = seen_BNV | (block_BNV > 0)
        repeated_BNV = torch.where(logits_BNV > 0, logits_BNV / self._repetition_B11, logits_BNV * self._repetition_B11)
        out_BNV = torch.where(seen_BNV, repeated_BNV, logits_BNV)
        out_BNV = out_BNV - self._frequency_B11 * counts_BNV
        return out_BNV - self._presence_B11 * (counts_BNV > 0)

    def _follow(self) -> None:
        """Count the tokens that were appended since the last call."""
        for b, tokens in enumerate(self._tokens):
            first, length = self._num_counted[b], len(tokens)
            if first == length:
                continue
            prompt_end = max(first, self._num_prompt[b])
            new = torch.tensor(tokens[first:], device=self._counts_BV.device)
            self._seen_BV[b, new] = True
            output = new[prompt_end - first :]
            self._counts_BV[b].index_add_(0, output, torch.ones_like(output, dtype=torch.float32))
            self._num_counted[b] = length


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def _prefix_counts(drafted_BK: torch.Tensor, width: int, vocab_size: int) -> torch.Tensor:
    """float32 [B, N, V]: how often each id occurs among the first j drafted tokens of row j."""
    drafted_BK = drafted_BK[:, : width - 1]
    known_BK = (drafted_BK >= 0) & (drafted_BK < vocab_size)
    ones_BKV = F.one_hot(torch.where(known_BK, drafted_BK, 0), vocab_size) * known_BK.unsqueeze(-1)
    return F.pad(ones_BKV.to(torch.float32).cumsum(dim=1), (0, 0, 1, 0))
