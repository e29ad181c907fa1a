"""compress: write the compressed rows that tokens of a pass close; which implementation."""

from collections.abc import Sequence

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.compress import reference
from backends.deepseek_v4.ops.compress.values import EntryCache
from backends.deepseek_v4.pass_values import PassIndices

__all__ = ["EntryCache", "compress"]


def compress(
    indices: PassIndices,
    kind: AttentionKind,
    caches: Sequence[EntryCache],
    *,
    eps: float,
    angles_T2R: torch.Tensor,
    kernels: Kernels,
) -> None:
    """Pool the window of state rows that ends at each token with an entry slot, and write the compressed row there.

    caches      one or two whose rows close together, such as compressed rows and index keys; the pass's own state
                rows are written already
    eps         of the norm of compressed rows
    angles_T2R  float32 [T, 2, R], contiguous: of each token's block start (``PassAngles.entries``)

    State rows of positions before the text or without a page have no weight. Source: ``Compressor.pool``; contract of
    the bytes: ``rows``. UnsupportedError for a row format that has no kernel.
    """
    assert 1 <= len(caches) <= 2, "a layer has compressed rows, and may have index keys"
    if kernels is Kernels.REFERENCE:
        for cache in caches:
            reference.compress(indices, kind, cache, eps=eps, angles_T2R=angles_T2R)
        return
    from backends.deepseek_v4.ops.compress import kernel

    kernel.compress(indices, kind, caches, eps=eps, angles_T2R=angles_T2R)
