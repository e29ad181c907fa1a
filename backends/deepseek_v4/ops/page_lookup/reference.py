"""Physical page of a logical page, and the per-token request vector; knows nothing of rows or slots.

One sentinel rule holds for every index function: a token whose request is -1 is padding, and whatever cannot
be found is -1. No function reads the device.
"""

import torch

from specdec.errors import MetadataError


def page_lookup(reqs_X: torch.Tensor, columns_X: torch.Tensor, pages_BC: torch.Tensor) -> torch.Tensor:
    """Physical page (int64) at each (request, column) of a block table; -1 outside of the table.

    ``reqs_X`` and ``columns_X`` are integers of shapes that broadcast to the shape of the result.
    """
    num_reqs, num_columns = pages_BC.shape
    shape = torch.broadcast_shapes(reqs_X.shape, columns_X.shape)
    if num_reqs == 0 or num_columns == 0:
        return torch.full(shape, -1, dtype=torch.int64, device=pages_BC.device)
    reqs = reqs_X.to(torch.int64)
    columns = columns_X.to(torch.int64)
    inside = (reqs >= 0) & (reqs < num_reqs) & (columns >= 0) & (columns < num_columns)
    pages = pages_BC[reqs.clamp(0, num_reqs - 1), columns.clamp(0, num_columns - 1)].to(torch.int64)
    return torch.where(inside & (pages >= 0), pages, -1)


def request_values(reqs_X: torch.Tensor, values_B: torch.Tensor) -> torch.Tensor:
    """``values_B[reqs_X]`` as int64, and 0 where the request is outside of the batch."""
    if values_B.shape[0] == 0:
        return torch.zeros(reqs_X.shape, dtype=torch.int64, device=reqs_X.device)
    reqs = reqs_X.to(torch.int64)
    inside = (reqs >= 0) & (reqs < values_B.shape[0])
    return torch.where(inside, values_B[reqs.clamp(0, values_B.shape[0] - 1)].to(torch.int64), 0)


def logical_columns(
    logical_X: torch.Tensor, reqs_X: torch.Tensor, base_B: torch.Tensor | None
) -> torch.Tensor:
    """Column of logical pages in a table whose column 0 is logical page ``base_B`` (None: page 0).

    -1 where the request is outside of ``base_B``.
    """
    if base_B is None:
        return logical_X
    outside = (reqs_X < 0) | (reqs_X >= base_B.shape[0])
    return torch.where(outside, -1, logical_X - request_values(reqs_X, base_B))


def expand_requests(reqs_R: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """One request per packed token.

    A vector with one entry per request is repeated to ``num_tokens``. Raises MetadataError when its length
    does not divide the number of tokens.
    """
    num_reqs = reqs_R.shape[0]
    if num_reqs == num_tokens:
        return reqs_R
    if num_reqs == 0 or num_tokens % num_reqs:
        raise MetadataError(
            f"a vector of {num_reqs} entries has an incompatible shape for {num_tokens} packed tokens: "
            "its length must divide their number"
        )
    return reqs_R.repeat_interleave(num_tokens // num_reqs, output_size=num_tokens)


def mask_requests(reqs_T: torch.Tensor, valid_R: torch.Tensor) -> torch.Tensor:
    """``reqs_T`` with -1 for padding tokens; ``valid_R`` (bool) has an entry per token or per request."""
    return torch.where(expand_requests(valid_R, reqs_T.shape[0]), reqs_T, -1)
