"""Placement: token ids, positions, slots and attention mask of one call as tensors; knows no model.

``attention_mask`` is the only place that decides who sees whom. A node of a tree sees the committed prefix, the nodes
on its path and itself, and has its position by depth.
"""

from dataclasses import dataclass

import torch

from backends.hf.passes import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One call. Padding columns repeat the last token of their span and are stored nowhere.

    part          what is placed
    ids_BQ        int64
    positions_BQ  int64
    mask_B1QW     added to attention scores: 0 where a key is seen, the lowest number of the type elsewhere
    batch_T       int64 batch index of each real token of the call, span by span
    column_T      int64 column of each real token
    rows_T        int64 engine row of each real token
    slots_T       int64 slot of each real token
    """

    part: Part
    ids_BQ: torch.Tensor
    positions_BQ: torch.Tensor
    mask_B1QW: torch.Tensor
    batch_T: torch.Tensor
    column_T: torch.Tensor
    rows_T: torch.Tensor
    slots_T: torch.Tensor


def place(part: Part, tokens_T: torch.Tensor, *, dtype: torch.dtype) -> Placement:
    """Place chains and trees. ``tokens_T`` (int64) are the packed tokens of the whole pass."""
    packed, slots, real = [], [], []
    for b, span in enumerate(part.spans):
        offsets = [min(column, span.length - 1) for column in range(part.width)]
        packed.append([span.first + offset for offset in offsets])
        slots.append([span.start + offset for offset in offsets])
        real.extend((b, column, span.row, span.start + column) for column in range(span.length))
    device = tokens_T.device
    slots_BQ = positions_BQ = torch.tensor(slots, dtype=torch.int64, device=device)
    mask_B1QW = attention_mask(slots_BQ, kv_width=part.kv_width, dtype=dtype)
    if part.has_trees:
        positions_BQ = torch.tensor(tree_positions(part), dtype=torch.int64, device=device)
        b_X, column_X, slot_X = torch.tensor(unseen_in_trees(part), dtype=torch.int64, device=device).reshape(-1, 3).T
        mask_B1QW[b_X, 0, column_X, slot_X] = torch.finfo(dtype).min
    real_4T = torch.tensor(real, dtype=torch.int64, device=device).T
    return Placement(
        part=part,
        ids_BQ=tokens_T[torch.tensor(packed, dtype=torch.int64, device=device)],
        positions_BQ=positions_BQ,
        mask_B1QW=mask_B1QW,
        batch_T=real_4T[0],
        column_T=real_4T[1],
        rows_T=real_4T[2],
        slots_T=real_4T[3],
    )


def attention_mask(slots_BQ: torch.Tensor, *, kv_width: int, dtype: torch.dtype) -> torch.Tensor:
    """Who sees whom in a chain: each query its own slot and all before it; ``dtype`` [B, 1, Q, W]."""
    keys_W = torch.arange(kv_width, device=slots_BQ.device)
    hidden_BQW = keys_W > slots_BQ[:, :, None]
    mask_BQW = torch.zeros(hidden_BQW.shape, dtype=dtype, device=slots_BQ.device)
    return mask_BQW.masked_fill_(hidden_BQW, torch.finfo(dtype).min)[:, None]


def tree_positions(part: Part) -> list[list[int]]:
    """Position of every column [B, Q]; nodes of a tree at one depth share theirs."""
    return [
        [span.start + span.offsets[min(column, span.length - 1)] for column in range(part.width)] for span in part.spans
    ]


def unseen_in_trees(part: Part) -> list[tuple[int, int, int]]:
    """What of the mask of chains is too much for trees: (batch index, column, slot) of nodes beside the own path."""
    found = []
    for b, span in enumerate(part.spans):
        if span.tree is None:
            continue
        for column in range(1, part.width):
            node = min(column, span.length - 1) - 1
            path = span.tree.path(node)
            found.extend((b, column, span.start + 1 + other) for other in range(node) if other not in path)
    return found
