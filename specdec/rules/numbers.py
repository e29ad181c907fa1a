"""The few array operations that verification rules are written in, over two kinds of numbers; knows no rule.

    torch.Tensor              a round that decodes, on any device
    numpy array of Fraction   a round that is judged, in exact rational arithmetic (dtype object)

Both kinds share operators, comparison and slicing; what differs is here. Counts and ids are int64 in either kind.
"""

import numpy as np
import torch

Array = torch.Tensor | np.ndarray


def at_most_one(x: Array) -> Array:
    """min(x, 1), entry by entry."""
    return x.clamp(max=1.0) if isinstance(x, torch.Tensor) else np.minimum(x, 1)


def positive_part(x: Array) -> Array:
    """max(x, 0), entry by entry."""
    return x.clamp(min=0.0) if isinstance(x, torch.Tensor) else np.maximum(x, 0)


def where(condition: Array, yes: Array | int, no: Array | int) -> Array:
    """``yes`` where the condition holds, ``no`` elsewhere."""
    chosen = torch.where if isinstance(condition, torch.Tensor) else np.where
    return chosen(condition, yes, no)


def total(x_XV: Array) -> Array:
    """Sum over the last axis [...]."""
    return x_XV.sum(-1)


def pick(x_XV: Array, ids_X: Array) -> Array:
    """Entry ``ids`` of the last axis [...]."""
    if isinstance(x_XV, torch.Tensor):
        return x_XV.gather(-1, ids_X.unsqueeze(-1)).squeeze(-1)
    return np.take_along_axis(x_XV, ids_X[..., None], -1)[..., 0]


def row(x_BNV: Array, index_B: Array) -> Array:
    """Row ``index`` of every request [B, V]."""
    if isinstance(x_BNV, torch.Tensor):
        return x_BNV.gather(1, index_B.view(-1, 1, 1).expand(-1, 1, x_BNV.shape[2])).squeeze(1)
    return np.take_along_axis(x_BNV, index_B[:, None, None], 1)[:, 0]


def wide(x: Array) -> Array:
    """float64 of a tensor; a fraction needs no more digits."""
    return x.double() if isinstance(x, torch.Tensor) else x


def cast(x: Array, like: Array) -> Array:
    """``x`` in the type of ``like``."""
    return x.to(like.dtype) if isinstance(x, torch.Tensor) else x


def stack(columns: list[Array]) -> Array:
    """Columns [B] side by side [B, len(columns)]."""
    return torch.stack(columns, 1) if isinstance(columns[0], torch.Tensor) else np.stack(columns, 1)


def columns(x_BK: Array) -> Array:
    """0, 1, .. of the second axis, int64 [K]."""
    if isinstance(x_BK, torch.Tensor):
        return torch.arange(x_BK.shape[1], device=x_BK.device)
    return np.arange(x_BK.shape[1])


def products_to_the_end(x_BK: Array) -> Array:
    """Product of entries k, k + 1, .. of each row [B, K]."""
    if isinstance(x_BK, torch.Tensor):
        return x_BK.flip(1).cumprod(1).flip(1)
    return np.cumprod(x_BK[:, ::-1], axis=1)[:, ::-1]


def leading_run(passed_BK: Array) -> Array:
    """Length of the leading run of True of each row, int64 [B]."""
    if isinstance(passed_BK, torch.Tensor):
        return passed_BK.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return np.cumprod(passed_BK.astype(np.int64), axis=1).sum(axis=1)


def point_masses(ids_X: Array, like_XV: Array) -> Array:
    """Laws [..., V] of tokens that were not drawn; V and type are those of ``like_XV``."""
    vocab_size = like_XV.shape[-1]
    if isinstance(ids_X, torch.Tensor):
        shape = (*ids_X.shape, vocab_size)
        return torch.zeros(shape, dtype=like_XV.dtype, device=ids_X.device).scatter_(-1, ids_X.unsqueeze(-1), 1.0)
    return (np.arange(vocab_size) == ids_X[..., None]).astype(np.int64).astype(object)


def entropy(x_XV: Array) -> Array:
    """Shannon entropy in nats [...]; irrational, so fractions become floats here."""
    p_XV = torch.as_tensor(x_XV if isinstance(x_XV, torch.Tensor) else x_XV.astype(np.float64))
    entropy_X = -torch.special.xlogy(p_XV, p_XV).sum(-1)
    return entropy_X if isinstance(x_XV, torch.Tensor) else entropy_X.numpy()


def exp(x: Array) -> Array:
    """e to the power of floats."""
    return x.exp() if isinstance(x, torch.Tensor) else np.exp(x)
