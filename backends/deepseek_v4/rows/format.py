"""RowFormat: how one cached vector lies inside a page; knows nothing of requests, tables or layers.

A buffer holds ``num_pages`` pages of ``rows_per_page`` rows each; slot ``s`` is row ``s % rows_per_page`` of
page ``s // rows_per_page``. Page 0 is never handed out to a request: its last row is where unwanted writes land,
its first row stays as it was allocated.

Letters: X any leading shape, D values of a row, T packed tokens.
"""

from typing import Protocol

import torch


class RowFormat(Protocol):
    """Writer and reader of the rows of one buffer.

    width          values of a row (D)
    rows_per_page  rows of a page
    row_bytes      bytes of a row without page padding
    page_bytes     bytes of a page, padding included
    """

    @property
    def width(self) -> int: ...

    @property
    def rows_per_page(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    def allocate(self, num_pages: int, device: torch.device) -> torch.Tensor:
        """A zeroed buffer of ``num_pages`` pages."""

    def write(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Store ``rows_TD`` (floating point) at ``slots_T`` (int64), in place; nothing is read back.

        A negative slot means "do not write": its row lands in the last row of page 0, which belongs to nobody.
        Slots at or beyond the capacity are a mistake of the caller.
        """

    def put(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """As ``write``, but for slots that are all 0 or more."""

    def read(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Rows at ``slots_X`` (int32 or int64, any shape) as [X, D]; a negative slot gives a row of zeros."""

    def take(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """As ``read``, but for slots that are all 0 or more: nothing is masked."""


class RowCodec(Protocol):
    """Bytes of one quantised row; knows nothing of pages.

    width          values of a row (D)
    value_bytes, scale_bytes
                   bytes of the two records that a row is stored as
    page_multiple  a page is padded to a multiple of this many bytes
    """

    @property
    def width(self) -> int: ...

    @property
    def value_bytes(self) -> int: ...

    @property
    def scale_bytes(self) -> int: ...

    @property
    def page_multiple(self) -> int: ...

    def encode(self, rows_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Value records [X, value_bytes] and scale records [X, scale_bytes], uint8, of floating-point rows."""

    def decode(self, values_XV: torch.Tensor, scales_XS: torch.Tensor) -> torch.Tensor:
        """Rows [X, D] of both records."""


class IndexRowFormat(RowFormat, Protocol):
    """Rows of the indexer's key cache.

    Quantised keys are stored after a Hadamard rotation and ``read`` returns them rotated, so a query must
    pass through ``prepare_query`` before it meets them: score = relu(prepare_query(q) . read(...)).
    """

    def prepare_query(self, queries_XD: torch.Tensor) -> torch.Tensor:
        """Queries (after rope) as the scoring sees them: rotated, quantised and dequantised like the keys."""
