"""Physical page of a logical page, and the per-token request vector; knows nothing of rows or slots.

One sentinel rule holds for every index function: a token whose request is -1 is padding, and whatever cannot
be found is -1. No function reads the device.
"""

import torch

from specdec.errors import MetadataError


def page_lookup(reqs_X: torch.Tensor, columns_X: torch.Tensor, pages_BC: torch.Tensor) -> torch.Tensor:
    """Physical page (int64) at each (request, column) of a block table; negative where there is none.

    ``reqs_X`` and ``columns_X`` are integers whose shapes broadcast to that of the result; outside of the table
    there is no page.
    """
    num_reqs, num_columns = pages_BC.shape
    if num_reqs == 0 or num_columns == 0:
        shape = torch.broadcast_shapes(reqs_X.shape, columns_X.shape)
        return torch.full(shape, -1, dtype=torch.int64, device=pages_BC.device)
    reqs = reqs_X.to(torch.int64).clamp(0, num_reqs - 1)
    columns = columns_X.to(torch.int64).clamp(0, num_columns - 1)
    inside = (reqs == reqs_X) & (columns == columns_X)
    return torch.where(inside, pages_BC[reqs, columns].to(torch.int64), -1)


def request_values(reqs_X: torch.Tensor, values_B: torch.Tensor) -> torch.Tensor:
    """``values_B[reqs_X]`` as int64; an unspecified entry where the request is outside of the batch."""
    if values_B.shape[0] == 0:
        return torch.zeros(reqs_X.shape, dtype=torch.int64, device=reqs_X.device)
    return values_B[reqs_X.to(torch.int64).clamp(0, values_B.shape[0] - 1)].to(torch.int64)


def expand_requests(reqs_R: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """One entry per packed token.

    A vector with one entry per request is repeated to ``num_tokens``. Raises MetadataError when its length
    does not divide the number of tokens.
    """
    num_reqs = reqs_R.shape[0]
    if num_reqs == num_tokens:
        return reqs_R
    if num_reqs == 0 or num_tokens == 0 or num_tokens % num_reqs:
        raise MetadataError(
            f"a vector of {num_reqs} entries has an incompatible shape for {num_tokens} packed tokens: "
            "its length must divide their number"
        )
    return reqs_R.repeat_interleave(num_tokens // num_reqs, output_size=num_tokens)


def mask_requests(reqs_T: torch.Tensor, valid_R: torch.Tensor) -> torch.Tensor:
    """``reqs_T`` with -1 for padding tokens; ``valid_R`` (bool) has an entry per token or per request."""
    return torch.where(expand_requests(valid_R, reqs_T.shape[0]), reqs_T, -1)
