"""sinkhorn of some matrices on the CPU, without gradients: sums of rows and columns are products with 0/1 matrices.

A round is four small NumPy calls whatever the number of matrices. A constant column behind the cells carries ``eps``
into the sums.
"""

import numpy as np


class BatchedSinkhorn:
    """The reference's result for matrices of one size; holds the 0/1 matrices that sum their rows and columns."""

    def __init__(self, size: int, num_rounds: int, eps: float) -> None:
        cells = np.arange(size * size)
        self._size, self._num_rounds, self._eps = size, num_rounds, np.float32(eps)
        self._row_sums, self._column_sums = _sums(cells // size, eps), _sums(cells % size, eps)

    def __call__(self, logits_XC: np.ndarray) -> np.ndarray:
        """Projections [X, S * S] of float32 ``logits_XC`` [X, S * S], row by row."""
        rows_XSS = logits_XC.reshape(-1, self._size, self._size)
        padded_XC1 = np.ones((len(logits_XC), self._size**2 + 1), dtype=np.float32)
        cells_XC = padded_XC1[:, :-1]
        np.exp((rows_XSS - np.maximum.reduce(rows_XSS, axis=2, keepdims=True)).reshape(logits_XC.shape), out=cells_XC)
        cells_XC /= np.dot(cells_XC, self._row_sums[:-1])
        cells_XC += self._eps
        for step in range(2 * self._num_rounds - 1):
            cells_XC /= np.dot(padded_XC1, self._row_sums if step % 2 else self._column_sums)
        return cells_XC


def _sums(group_C: np.ndarray, eps: float) -> np.ndarray:
    """Matrix [C + 1, C] that gives every cell the sum over its group of cells, plus ``eps`` times the last entry."""
    same_CC = (group_C[:, None] == group_C[None, :]).astype(np.float32)
    return np.concatenate([same_CC, np.full((1, len(group_C)), eps, dtype=np.float32)])
