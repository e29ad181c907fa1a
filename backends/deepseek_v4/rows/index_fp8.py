"""Fp8IndexRows: the 132-byte indexer key row; knows nothing of scoring.

A row is ``dim`` fp8 e4m3 values and one fp32 scale per 128 of them (4 bytes, a power of two). A page keeps
all values first and all scales after them, the layout that DeepGEMM's paged logits read.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.rows.hadamard import rotate
from backends.deepseek_v4.rows.missing import zero_missing
from backends.deepseek_v4.rows.scales import FP8_MAX, block_amax, power_of_two, scale_exponents, to_fp8
from backends.deepseek_v4.rows.split_page import SplitPages
from specdec.errors import ConfigError

BLOCK = 128
SCALE_BYTES = 4
# The smallest exponent: ceil(log2(1e-10)), the floor that the original puts on amax / 448.
MIN_EXPONENT = -33


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8IndexRows:
    """Indexer keys of ``dim`` values as fp8 with fp32 scales.

    Raises ConfigError unless dim is a power of two of at least 128.
    """

    dim: int
    rows_per_page: int

    def __post_init__(self) -> None:
        if self.dim < BLOCK or self.dim & (self.dim - 1):
            raise ConfigError(
                f"index_head_dim must be a power of two of at least {BLOCK} for fp8 indexer keys, "
                f"got {self.dim} (conf: target.indexer_dtype)"
            )

    @property
    def width(self) -> int:
        return self.dim

    @property
    def row_bytes(self) -> int:
        return self.dim + self.dim // BLOCK * SCALE_BYTES

    @property
    def page_bytes(self) -> int:
        return self.row_bytes * self.rows_per_page

    def _pages(self) -> SplitPages:
        return SplitPages(
            rows_per_page=self.rows_per_page,
            value_bytes=self.dim,
            scale_bytes=self.dim // BLOCK * SCALE_BYTES,
            page_bytes=self.page_bytes,
        )

    def allocate(self, num_pages: int, device: torch.device) -> torch.Tensor:
        """Zeros, uint8 [num_pages, page_bytes]."""
        return self._pages().allocate(num_pages, device)

    def encode(self, rows_XD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate and quantise: value bytes [X, dim] and scale bytes [X, 4 * dim / 128], uint8; NaN stays."""
        blocks = rotate(rows_XD).to(torch.float32).unflatten(-1, (-1, BLOCK))
        exponents = self._exponents(block_amax(blocks))
        codes = to_fp8(blocks * power_of_two(-exponents).unsqueeze(-1)).flatten(-2)
        return codes.view(torch.uint8), power_of_two(exponents).view(torch.uint8)

    def _exponents(self, amax_X: torch.Tensor) -> torch.Tensor:
        smallest = FP8_MAX * 2.0**MIN_EXPONENT
        return scale_exponents(amax_X.clamp(min=smallest), limit=FP8_MAX)

    def decode(self, values_XV: torch.Tensor, scales_XS: torch.Tensor) -> torch.Tensor:
        """Rotated keys [X, dim] in fp32 from value and scale bytes."""
        blocks = values_XV.view(torch.float8_e4m3fn).to(torch.float32).unflatten(-1, (-1, BLOCK))
        return (blocks * scales_XS.contiguous().view(torch.float32).unsqueeze(-1)).flatten(-2)

    def write(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """Rotate, quantise and store keys in place; negative slots land in the last row of page 0."""
        self._pages().store(buffer, slots_T, *self.encode(rows_TD))

    def put(self, buffer: torch.Tensor, slots_T: torch.Tensor, rows_TD: torch.Tensor) -> None:
        """As ``write``; slots must be 0 or more."""
        self.write(buffer, slots_T, rows_TD)

    def read(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Rotated keys [X, dim] in fp32; zeros for negative slots."""
        return zero_missing(self.take(buffer, slots_X.clamp(min=0)), slots_X)

    def take(self, buffer: torch.Tensor, slots_X: torch.Tensor) -> torch.Tensor:
        """Rotated keys [X, dim] in fp32; slots must be 0 or more."""
        return self.decode(*self._pages().load(buffer, slots_X))

    def prepare_query(self, queries_XD: torch.Tensor) -> torch.Tensor:
        """Queries rotated, quantised and dequantised like the keys, fp32 [X, dim]."""
        return self.decode(*self.encode(queries_XD))
