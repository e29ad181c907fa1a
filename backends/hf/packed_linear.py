"""Products of rows with the weights of a Llama model in float32 on a CPU, over weights packed for oneDNN.

A product with a weight as it is stored reorders it in every call. Measured on one EPYC core with AVX2, 3072 x 576:
2 rows 1.3 ms against 0.6 ms packed, 11 rows 1.8 ms against 1.2 ms; a whole pass of SmolLM2: 1 row 55 ms either way,
11 rows 151 ms against 99 ms. On that machine a packed product gives a row the same result, bit for bit, whatever the
number of rows, so a verify pass rounds as plain decoding does.

A packed weight is a copy, so only small models get one. The two operators are those that torch's own compiler emits;
where this torch lacks them or they give another product, nothing is packed.
"""

from collections.abc import Sequence

import torch

from backends.hf.few_rows import few_rows_product

PACKED_ROWS = 8
"""Rows that the packed form is chosen for; it serves any other number, too (packed for 1 row it would not)."""
MOST_BYTES = 1 << 30
"""Largest sum of weights that is copied; a model above it runs on the weights that it has."""


class Product:
    """``rows_RX @ weight_YX.T`` for float32 rows; anything else goes through ``few_rows_product``."""

    def __init__(self, weight_YX: torch.Tensor, *, pack: bool) -> None:
        self._weight_YX = weight_YX
        self._packed = _packed(weight_YX) if pack else None

    def __call__(self, rows_RX: torch.Tensor) -> torch.Tensor:
        """``[R, X]`` -> ``[R, Y]``."""
        if self._packed is None:
            return few_rows_product(rows_RX, self._weight_YX)
        return _product(rows_RX, self._packed)


def worth_packing(weights: Sequence[torch.Tensor]) -> bool:
    """Whether all of these weights [Y, X] together are small enough, of the right type, and can be packed here."""
    plain = all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in weights)
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    return plain and num_bytes <= MOST_BYTES and packing_works()


def packing_works() -> bool:
    """Whether this torch packs weights on this CPU and a packed product is the product."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight_YX = torch.linspace(-1.0, 1.0, 48 * 32).view(48, 32)
    rows_RX = torch.linspace(1.0, -1.0, 5 * 32).view(5, 32)
    try:
        found_RY = _product(rows_RX, _packed(weight_YX))
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(found_RY, rows_RX @ weight_YX.T, atol=1e-4)


def _packed(weight_YX: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_YX.detach(), PACKED_ROWS)


def _product(rows_RX: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows_RX, packed, None, "none", [], "")
