"""Products of a few float32 rows with a weight, on the CPU, where reading the weight is the cost.

Weights that came from an 8-bit, 4-bit or bf16 checkpoint fit into half precision without loss once they are scaled
by a power of two. Those are kept in half, packed for a kernel that widens them on the way to float32 arithmetic, so
that a product reads half the bytes and two or four rows cost little more than one. Others stay as they are.
"""

import warnings
from collections.abc import Callable, Sequence

import torch

# Rows [T, in] -> rows [T, out].
Product = Callable[[torch.Tensor], torch.Tensor]

HALF_MAX = 2.0**15


def product_of(weights: Sequence[torch.Tensor], *, half: bool = True) -> Product:
    """The product with several weights [out, in] side by side, in one call; copies them.

    half  allow storage in half precision where it is exact. A row's result then depends on how many rows are with
          it, in the last bits, as it does in most matrix products.
    """
    weight = torch.cat([w.detach().float() for w in weights])
    scale = half_scale(weight) if half and has_half_products() else None
    return plain_product(weight) if scale is None else half_product(weight, scale)


def has_half_products() -> bool:
    """Whether this build of torch runs products of half weights with float32 rows on this processor."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(
        torch, "fbgemm_linear_fp16_weight_fp32_activation"
    )


def half_scale(weight: torch.Tensor) -> float | None:
    """The power of two by which ``weight`` becomes exact in half precision, 1.0 where it is; None if there is none."""
    if _is_half(weight):
        return 1.0
    exponent = torch.log2(HALF_MAX / weight.abs().max()).floor()
    if not torch.isfinite(exponent):
        return None
    scale = 2.0 ** int(exponent)
    return scale if _is_half(weight * scale) else None


def _is_half(weight: torch.Tensor) -> bool:
    return torch.equal(weight.half().float(), weight)


def half_product(weight: torch.Tensor, scale: float) -> Product:
    """Product with ``weight`` [out, in], kept as ``half(weight * scale)``."""
    nothing = torch.zeros(weight.shape[0])
    with warnings.catch_warnings():
        # The first call of each function warns that a later torch may lack it; then weights stay float32.
        warnings.simplefilter("ignore")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight * scale)
        torch.fbgemm_linear_fp16_weight_fp32_activation(weight[:1], packed, nothing)
    run = torch.fbgemm_linear_fp16_weight_fp32_activation
    if scale == 1.0:
        return lambda x_TI: run(x_TI, packed, nothing)
    return lambda x_TI: run(x_TI, packed, nothing).mul_(1.0 / scale)


def plain_product(weight: torch.Tensor) -> Product:
    """Product with ``weight`` [out, in]; the longer side is contiguous, as long runs of memory are read fastest."""
    out, inner = weight.shape
    weight_IO = weight.t().contiguous() if out >= inner else weight.contiguous().t()
    return lambda x_TI: torch.mm(x_TI, weight_IO)
