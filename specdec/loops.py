"""Loops: stretches of output that repeat themselves; knows nothing of models or rounds.

Text in a loop is drafted almost perfectly, so figures are also given without the steps that emitted any of it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specdec.step_row import StepRow

MAX_PERIOD = 64
MIN_REPEATS = 3


def in_loop(tokens: Sequence[int]) -> np.ndarray:
    """bool [len(tokens)]: whether a token lies in a stretch of period p <= 64 that holds at least three periods."""
    tokens = np.asarray(tokens, dtype=np.int64)
    marked = np.zeros(len(tokens), dtype=bool)
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_REPEATS) + 1):
        same = np.zeros(len(tokens) - period + 2, dtype=np.int8)
        same[1:-1] = tokens[period:] == tokens[:-period]
        edges = np.diff(same)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        long_enough = ends - starts >= (MIN_REPEATS - 1) * period
        for start, end in zip(starts[long_enough], ends[long_enough], strict=True):
            marked[start : end + period] = True
    return marked


def mark_loops(rows: Sequence[StepRow], output_ids: Sequence[int]) -> tuple[StepRow, ...]:
    """The rows of one request, in order of its steps, with ``in_loop`` set.

    ``output_ids`` are all its tokens; the first came from the prompt and belongs to no step.
    """
    marked = in_loop(output_ids)
    out, start = [], 1
    for row in rows:
        out.append(replace(row, in_loop=bool(marked[start : start + row.emitted].any())))
        start += row.emitted
    return tuple(out)
