"""Readback: host memory that recorded rounds of one size copy their result into; knows nothing of what it means."""

from collections.abc import Sequence

import numpy as np
import torch


def float_bits(values_BX: torch.Tensor) -> torch.Tensor:
    """float32 [B, X] as int64 [B, X], to go in one copy with integers; ``Readback.floats`` turns them back."""
    return values_BX.float().view(torch.int32).long()


class Readback:
    """Holds the result of the last replay, pinned for CUDA and at an address that never changes.

    num_values  int64 values that the largest result has
    """

    def __init__(self, num_values: int, *, device: torch.device) -> None:
        self._host = torch.zeros(num_values, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._array = self._host.numpy()

    def copy(self, result_BX: torch.Tensor) -> None:
        """Bring int64 [B, X] here; to be read when the stream has got so far."""
        self._host[: result_BX.numel()].view_as(result_BX).copy_(result_BX, non_blocking=True)

    def integers(self, num_reqs: int, num_columns: int, *, stop: int) -> list[list[int]]:
        """Columns before ``stop`` of the first ``num_reqs`` lines of a result of ``num_columns``."""
        return self._lines(num_reqs, num_columns)[:, :stop].tolist()

    def floats(self, num_reqs: int, num_columns: int, *, start: int) -> Sequence[Sequence[float]]:
        """Columns from ``start`` on, which ``float_bits`` has made."""
        return self._lines(num_reqs, num_columns)[:, start:].astype(np.int32).view(np.float32).tolist()

    def _lines(self, num_reqs: int, num_columns: int) -> np.ndarray:
        return self._array[: num_reqs * num_columns].reshape(num_reqs, num_columns)
