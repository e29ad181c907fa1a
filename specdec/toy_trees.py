"""Where the toy target's passes with trees keep and find their tokens; host integers."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specdec.api import RoundLayout
from specdec.rules.numbers import Array


def place_finder(layout: RoundLayout) -> Callable[[Array], Array] | None:
    """From positions [X, R] wanted for the logit rows of a pass to their places; None where they are the same."""
    if not layout.has_trees:
        return None
    ways: list[tuple[int, Sequence[int]]] = []
    for row in layout.logit_rows:
        request = layout.token_reqs[row]
        offset = row - layout.query_starts[request]
        ways.append((layout.start_positions[request], layout.seen(request)[offset]))

    def place(positions_XR: Array) -> Array:
        placed = [
            [position if position <= start else start + seen[position - start] for position, (start, seen) in line]
            for line in (zip(line, ways, strict=True) for line in positions_XR.tolist())
        ]
        if isinstance(positions_XR, torch.Tensor):
            return torch.tensor(placed, dtype=torch.int64, device=positions_XR.device)
        return np.array(placed, dtype=np.int64).reshape(positions_XR.shape)

    return place


def moves_of(layout: RoundLayout, paths: Sequence[Sequence[int]], *, device: torch.device) -> torch.Tensor:
    """What keeping the paths moves: batch index, place and new place of every accepted node, int64 [3, M]."""
    moves = [
        (request, start + 1 + node, start + 1 + i)
        for request, (start, path) in enumerate(zip(layout.start_positions, paths, strict=True))
        for i, node in enumerate(path)
    ]
    return torch.tensor(moves, dtype=torch.int64, device=device).reshape(-1, 3).T.contiguous()
