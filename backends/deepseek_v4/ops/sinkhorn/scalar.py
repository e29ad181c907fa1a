"""sinkhorn of one matrix in Python floats: for a handful of matrices this beats any tensor library by far.

The rounds only ever scale rows and columns, so the matrix is kept and two vectors of factors change. With row
factors u and column factors v a step ``C / (sum + eps)`` becomes ``t = A v + eps * t, u = 1 / t`` (and likewise for
columns), exactly the reference's arithmetic up to rounding. Rounds end early once they change nothing that float32
could show.
"""

from collections.abc import Sequence
from math import exp, isqrt

SETTLED = 1e-20


def sinkhorn(logits: Sequence[float], num_rounds: int, eps: float) -> list[float]:
    """The reference's result for one square matrix of logits; both row by row in one list."""
    size = isqrt(len(logits))
    matrix: list[float] = []
    for start in range(0, len(logits), size):
        row = logits[start : start + size]
        top = max(row)
        powers = [exp(x - top) for x in row]
        scale = 1.0 / sum(powers)
        matrix += [p * scale + eps for p in powers]
    return _rounds_of_four(matrix, num_rounds, eps) if size == 4 else _rounds(matrix, size, num_rounds, eps)


def _rounds(matrix: list[float], size: int, num_rounds: int, eps: float) -> list[float]:
    index = range(size)
    u, v = [1.0] * size, [1.0] * size
    row_sums, column_sums = u, v
    for step in range(num_rounds):
        if step:
            row_sums = [sum(matrix[i * size + j] * v[j] for j in index) + eps * row_sums[i] for i in index]
            u = [1.0 / t for t in row_sums]
        column_sums = [sum(matrix[i * size + j] * u[i] for i in index) + eps * column_sums[j] for j in index]
        v = [1.0 / t for t in column_sums]
    return [matrix[i * size + j] * u[i] * v[j] for i in index for j in index]


def _rounds_of_four(matrix: list[float], num_rounds: int, eps: float) -> list[float]:
    """``_rounds`` of a 4 x 4 matrix, written out: four streams are what every V4 checkpoint has."""
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = matrix
    u0 = u1 = u2 = u3 = r0 = r1 = r2 = r3 = 1.0
    v0 = v1 = v2 = v3 = s0 = s1 = s2 = s3 = 1.0
    for step in range(num_rounds):
        if step:
            r0 = a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3 + eps * r0
            r1 = b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3 + eps * r1
            r2 = c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3 + eps * r2
            r3 = d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3 + eps * r3
            u0, u1, u2, u3 = 1.0 / r0, 1.0 / r1, 1.0 / r2, 1.0 / r3
        t0 = a0 * u0 + b0 * u1 + c0 * u2 + d0 * u3 + eps * s0
        t1 = a1 * u0 + b1 * u1 + c1 * u2 + d1 * u3 + eps * s1
        t2 = a2 * u0 + b2 * u1 + c2 * u2 + d2 * u3 + eps * s2
        t3 = a3 * u0 + b3 * u1 + c3 * u2 + d3 * u3 + eps * s3
        v0, v1, v2, v3 = 1.0 / t0, 1.0 / t1, 1.0 / t2, 1.0 / t3
        # A common factor of all columns is taken back by the rows, so only differences count.
        factor = s0 * v0
        x1, x2, x3 = s1 * v1 - factor, s2 * v2 - factor, s3 * v3 - factor
        s0, s1, s2, s3 = t0, t1, t2, t3
        if x1 * x1 + x2 * x2 + x3 * x3 < SETTLED:
            break
    return [
        *(a0 * u0 * v0, a1 * u0 * v1, a2 * u0 * v2, a3 * u0 * v3),
        *(b0 * u1 * v0, b1 * u1 * v1, b2 * u1 * v2, b3 * u1 * v3),
        *(c0 * u2 * v0, c1 * u2 * v1, c2 * u2 * v2, c3 * u2 * v3),
        *(d0 * u3 * v0, d1 * u3 * v1, d2 * u3 * v2, d3 * u3 * v3),
    ]
