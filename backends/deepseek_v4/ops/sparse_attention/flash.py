"""Sparse attention through FlashMLA, then the inverse rotation, which FlashMLA leaves to its caller."""

import torch

from backends.deepseek_v4.ops.sparse_attention.kernel_combine import unrotate
from backends.deepseek_v4.ops.sparse_attention.values import KeyList
from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from backends.deepseek_v4.rows.split_page import SplitRows
from backends.vendor.flash_mla import PagedKeys, StepSchedules, sparse_decode
from specdec.errors import UnsupportedError


def sparse_attention(
    q_THD: torch.Tensor,
    window: KeyList,
    extra: KeyList | None,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    angles_T2R: torch.Tensor,
    schedules: StepSchedules | None,
) -> torch.Tensor:
    """See the operator."""
    schedules = StepSchedules.on(q_THD.device) if schedules is None else schedules
    more = None if extra is None else _paged(extra)
    o_THD = sparse_decode(q_THD, _paged(window), more, sinks_H, scale=scale, schedules=schedules)
    return unrotate(o_THD, angles_T2R)


def _paged(keys: KeyList) -> PagedKeys:
    if not (isinstance(keys.rows, SplitRows) and isinstance(keys.rows.codec, Fp8KvCodec)):
        raise UnsupportedError(
            f"FlashMLA reads fp8 rows only, got {type(keys.rows).__name__}: use the Triton kernels or "
            "cache_dtype=fp8 (conf: target.cache_dtype)"
        )
    return PagedKeys(
        buffer=keys.buffer,
        rows_per_page=keys.rows.rows_per_page,
        row_bytes=keys.rows.row_bytes,
        slots_TK=keys.slots.slots_TK,
        lens_T=keys.slots.lens_T,
    )
