"""Sparse attention through FlashMLA's prefill kernel: the pages of a pass are decoded into one matrix first.

An alternative for long prompt chunks that is not part of the operator: at V4's widths each token attends up to 640
rows, so the decode kernel of ``flash`` is as bound by its products as this one, and needs no second copy of the cache.
``experiments/bench_prefill.py`` times both.
"""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.gather_rows import gather_rows
from backends.deepseek_v4.ops.sparse_attention.values import KeyList
from backends.vendor.flash_mla import PREFILL_WIDTH_MULTIPLE, DenseKeys, check_device, load, sparse_prefill


def prefill_attention(
    q_THD: torch.Tensor,
    lists: list[tuple[KeyList, torch.Tensor]],
    sinks_H: torch.Tensor,
    *,
    scale: float,
    angles_T2R: torch.Tensor,
) -> torch.Tensor:
    """Results [T, H * d] as those of ``sparse_attention``; bf16 queries, cache rows of any storage.

    ``lists`` has the key lists in order, each with its pages (int32, any shape, -1 for none) among which all valid
    slots lie: the block tables of the pass. UnsupportedError and MetadataError of ``vendor.flash_mla``.
    """
    # Imported here, since the help of a benchmark must not need Triton.
    from backends.deepseek_v4.ops.sparse_attention.kernel_combine import unrotate

    check_device(q_THD.device)
    keys = decoded_keys(lists, Kernels.TRITON)
    return unrotate(sparse_prefill(q_THD, keys, sinks_H, scale=scale, calls=load()), angles_T2R)


def decoded_keys(lists: list[tuple[KeyList, torch.Tensor]], kernels: Kernels) -> DenseKeys:
    """All rows of the pages, in bf16, and the lists of ``prefill_attention`` as indices of these rows.

    Indices of a second list stand behind the columns of the first one. Device work of constant shape.
    """
    parts, indices, start, column = [], [], 0, 0
    lens_T = torch.zeros_like(lists[0][0].slots.lens_T)
    for keys, pages in lists:
        slots_XR = _slots_of_pages(pages.flatten(), keys.rows.rows_per_page)
        parts.append(gather_rows(keys.buffer, keys.rows, slots_XR, dtype=torch.bfloat16, kernels=kernels).flatten(0, 1))
        indices.append(_row_indices(keys, pages.flatten(), start))
        lens_T = torch.where(keys.slots.lens_T > 0, column + keys.slots.lens_T, lens_T)
        start, column = start + slots_XR.numel(), column + keys.slots.slots_TK.shape[1]
    indices_TK = torch.nn.functional.pad(torch.cat(indices, dim=1), (0, -column % PREFILL_WIDTH_MULTIPLE), value=-1)
    return DenseKeys(rows_SD=torch.cat(parts), indices_TK=indices_TK, lens_T=lens_T)


def _slots_of_pages(pages_X: torch.Tensor, rows_per_page: int) -> torch.Tensor:
    """Slots int32 [X, R] of all rows of the pages; -1 without a page."""
    offsets_R = torch.arange(rows_per_page, dtype=torch.int32, device=pages_X.device)
    pages_X1 = pages_X.unsqueeze(1)
    return torch.where(pages_X1 < 0, -1, pages_X1 * rows_per_page + offsets_R)


def _row_indices(keys: KeyList, pages_X: torch.Tensor, start: int) -> torch.Tensor:
    """Decoded rows int32 [T, K] that the slots of a list name; -1 for those that do not count."""
    rows_per_page, slots_TK = keys.rows.rows_per_page, keys.slots.slots_TK
    column_K = torch.arange(slots_TK.shape[1], device=slots_TK.device)
    counts_TK = (slots_TK >= 0) & (column_K < keys.slots.lens_T.unsqueeze(1))
    place_P = _places(pages_X, keys.buffer.shape[0])
    places_TK = place_P[(slots_TK.clamp(min=0) // rows_per_page).long()]
    return torch.where(counts_TK, start + places_TK * rows_per_page + slots_TK % rows_per_page, -1)


def _places(pages_X: torch.Tensor, num_pages: int) -> torch.Tensor:
    """Where each page of a cache stands in ``pages_X``, int32 [num_pages]; 0 for one that does not."""
    place_P1 = torch.zeros(num_pages + 1, dtype=torch.int32, device=pages_X.device)
    order_X = torch.arange(len(pages_X), dtype=torch.int32, device=pages_X.device)
    at_X = torch.where(pages_X < 0, num_pages, pages_X).long()
    return place_P1.scatter_(0, at_X, order_X)[:num_pages]
