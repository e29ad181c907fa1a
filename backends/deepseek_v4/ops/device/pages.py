"""Page lookup on the device: from a logical row of a request to its slot; knows nothing of what is stored there.

The rule is that of ``ops.slot_mapping``: logical page ``row // R``, column ``page - base``, slot
``table[req, column] * R + row % R``; whatever cannot be found is -1. A block table is passed as its pointer, the
stride of its rows and its number of columns (int32, neighbouring columns adjacent); base offsets as pointer and
stride, both None for a group with full history.
"""

import triton
import triton.language as tl


@triton.jit
def first_page(base_ptr, base_stride, req):
    """Logical page of column 0 of request ``req``; 0 where ``base_ptr`` is None."""
    if base_ptr is None:
        return req * 0
    else:
        return tl.load(base_ptr + req.to(tl.int64) * base_stride)


@triton.jit
def page_slots(table_ptr, row_stride, num_columns, req, base, rows, ROWS_PER_PAGE: tl.constexpr):
    """Slots (int32, shape of ``rows``) of logical rows of request ``req``; -1 for a negative row or without a page.

    ``rows`` counts stored rows from the start of the request: a position in a group of one row per token, an entry
    ``position // ratio`` in a compressed group. ``req`` and ``base`` (see ``first_page``) are int32 scalars or blocks
    that broadcast to ``rows``; ``req`` is a row of the table.
    """
    columns = rows // ROWS_PER_PAGE - base
    # Division rounds towards zero, so a negative row needs a test of its own.
    inside = (rows >= 0) & (columns >= 0) & (columns < num_columns)
    pages = tl.load(table_ptr + req.to(tl.int64) * row_stride + columns, mask=inside, other=-1)
    return tl.where(pages >= 0, pages * ROWS_PER_PAGE + rows % ROWS_PER_PAGE, -1)
