"""The refusal of stored weights that are no numbers; knows no format and no model."""

from math import isfinite
from pathlib import Path

import torch

from specdec.errors import CheckpointError


def check_finite(value: torch.Tensor, *, name: str, file: Path, advice: str) -> None:
    """Raise CheckpointError for NaN or inf in a weight: a model with one answers nonsense, and never says so.

    value   tensor of any type; integers are finite. One pass over it, and on a device one copy of a number to the host
    name    of the tensor in ``file``
    advice  what to do about it
    """
    if not value.is_floating_point() or not value.numel():
        return
    # Eight-bit floats have no comparisons.
    numbers = value.float() if value.element_size() == 1 else value
    # NaN and inf pass through: a third of the time of isfinite, which also allocates.
    least, most = torch.aminmax(numbers)
    if isfinite((most - least).item()):
        return
    num_wrong = int((~numbers.isfinite()).sum())
    # The difference of large finite numbers overflows, too.
    if not num_wrong:
        return
    raise CheckpointError(f"{file}: {num_wrong} of {value.numel()} values of {name} are NaN or inf; {advice}")
