"""What a reader returns for a negative slot; knows nothing of formats."""

import torch

_BITS = {2: torch.int16, 4: torch.int32}


def zero_missing(rows_XD: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
    """Set the rows of negative slots to zero, in place, and return ``rows_XD`` (contiguous, 2 or 4 bytes wide).

    Whatever a row held, NaN included, is gone. An AND of the bits is several times faster on a CPU than a
    masked fill with a mask that broadcasts over the last dimension.
    """
    bits = _BITS[rows_XD.dtype.itemsize]
    rows_XD.view(bits).bitwise_and_(slots_X.ge(0).to(bits).neg_().unsqueeze(-1))
    return rows_XD
