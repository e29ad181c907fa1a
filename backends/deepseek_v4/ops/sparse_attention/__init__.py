"""sparse_attention: each token's heads over the cache rows that its slot lists name."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.sparse_attention import reference
from backends.deepseek_v4.ops.sparse_attention.values import KeyList
from backends.vendor.flash_mla import StepSchedules

__all__ = ["KeyList", "sparse_attention"]


def sparse_attention(
    q_THD: torch.Tensor,
    window: KeyList,
    extra: KeyList | None,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    angles_T2R: torch.Tensor,
    kernels: Kernels,
    schedules: StepSchedules | None = None,
) -> torch.Tensor:
    """Attention results [T, H * d] in ``q_THD``'s dtype, the rotated dims of each head turned back.

    q_THD       normalised and rotated queries, fp32 or bf16
    window      rows of the sliding window
    extra       compressed rows, None in window-only layers; both lists share one softmax
    sinks_H     float32 natural-log weights in the denominator
    scale       factor of the products
    angles_T2R  float32 rotation of each token's position: cosines, then sines, of the last 2 * R dims of a head
    schedules   only for FlashMLA: the planning objects of this step, shared by its layers; None makes one for this
                call. Never keep one for the next step

    Rows are keys and values at once. A token without any key gives zeros. A token's result does not depend on the
    other tokens. Softmax with a sink: FlashMLA, ``tests/ref.py``. UnsupportedError and MetadataError of
    ``vendor.flash_mla`` with ``Kernels.FLASH_MLA``.
    """
    if kernels is Kernels.REFERENCE:
        return reference.sparse_attention(q_THD, window, extra, sinks_H, scale=scale, angles_T2R=angles_T2R)
    if kernels is Kernels.FLASH_MLA:
        from backends.deepseek_v4.ops.sparse_attention import flash

        return flash.sparse_attention(
            q_THD, window, extra, sinks_H, scale=scale, angles_T2R=angles_T2R, schedules=schedules
        )
    from backends.deepseek_v4.ops.sparse_attention import kernel

    return kernel.sparse_attention(q_THD, window, extra, sinks_H, scale=scale, angles_T2R=angles_T2R)
