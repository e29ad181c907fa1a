"""Training batches: windows of one long token stream, in an order that is a function of seed and step alone.

Each pass over the stream starts at its own offset and shuffles its windows, so no window is seen twice alike.
Windows may run across documents; the separator marks where.
"""

import torch

from specdec.errors import WorkloadError


class WindowBatches:
    """Batches of ``sequences`` windows of ``length + 1`` tokens; resuming at a step needs no state.

    tokens  one-dimensional integer stream, kept on ``device`` in its own type
    """

    def __init__(self, tokens: torch.Tensor, *, length: int, sequences: int, seed: int, device: str) -> None:
        self.tokens = tokens.to(device)
        self.length, self.sequences, self.seed = length, sequences, seed
        # A window needs one token more than its length, and the offset of a pass takes up to one window.
        self.num_windows = (tokens.numel() - 1 - length) // length
        self.batches_per_pass = self.num_windows // sequences
        if self.batches_per_pass < 1:
            raise WorkloadError(
                f"the text has {tokens.numel()} tokens, too few for one batch of {sequences} windows of "
                f"{length}; lower trainer.batch_sequences"
            )
        self._pass = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> torch.Tensor:
        """Windows int64 [B, length + 1] of step ``step`` (from 0)."""
        number, index = divmod(step, self.batches_per_pass)
        if number != self._pass:
            self._pass, self._starts = number, self._order(number).to(self.tokens.device)
        starts = self._starts[index * self.sequences : (index + 1) * self.sequences]
        offsets = torch.arange(self.length + 1, device=self.tokens.device)
        return self.tokens[starts.unsqueeze(1) + offsets].long()

    def _order(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        offset = torch.randint(self.length, (1,), generator=generator)
        return torch.randperm(self.num_windows, generator=generator) * self.length + offset
