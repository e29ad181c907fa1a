"""RoundLayout: which tokens of which requests one forward pass computes; host integers only.

It is the single source of lengths. Device tensors are made from it; nothing is ever read back.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate

from specdec.errors import MetadataError


class ForwardMode(Enum):
    """What a forward pass holds: nothing, decode rows, prompt chunks, or chunks followed by decode rows."""

    IDLE = "idle"
    DECODE = "decode"
    EXTEND = "extend"
    MIXED = "mixed"

    @classmethod
    def of(cls, *, num_prefill_reqs: int, num_reqs: int) -> "ForwardMode":
        """The mode of a batch whose first ``num_prefill_reqs`` of ``num_reqs`` requests are prompt chunks."""
        if num_reqs == 0:
            return cls.IDLE
        if num_prefill_reqs == 0:
            return cls.DECODE
        return cls.EXTEND if num_prefill_reqs == num_reqs else cls.MIXED

    @property
    def is_decode_or_idle(self) -> bool:
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    @property
    def is_extend_or_mixed(self) -> bool:
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


@dataclass(frozen=True, kw_only=True)
class RoundLayout:
    """One forward pass over ``B`` requests and ``T`` packed tokens, request-major, prompt chunks first.

    rows              [B] stable row of each request (row of its block tables and of per-request state)
    start_positions   [B] position of the first query token (= positions already committed to the cache)
    query_lens        [B] tokens of this pass per request, at least 1
    num_prefill_reqs  how many leading requests are prompt chunks
    logit_rows        packed token indices whose logits are wanted, ascending

    Raises MetadataError when lengths disagree.
    """

    rows: tuple[int, ...]
    start_positions: tuple[int, ...]
    query_lens: tuple[int, ...]
    num_prefill_reqs: int = 0
    logit_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        num_reqs = len(self.rows)
        if not len(self.start_positions) == len(self.query_lens) == num_reqs:
            raise MetadataError(
                f"rows, start_positions and query_lens must have one entry per request, got "
                f"{num_reqs}, {len(self.start_positions)} and {len(self.query_lens)}"
            )
        if not 0 <= self.num_prefill_reqs <= num_reqs:
            raise MetadataError(f"num_prefill_reqs must be 0..{num_reqs}, got {self.num_prefill_reqs}")
        if any(n < 0 for n in self.query_lens) or any(p < 0 for p in self.start_positions):
            raise MetadataError(f"negative length in {self.query_lens} or position in {self.start_positions}")
        if self.logit_rows and not 0 <= self.logit_rows[0] <= self.logit_rows[-1] < self.num_tokens:
            raise MetadataError(f"logit_rows must lie in 0..{self.num_tokens - 1}, got {self.logit_rows}")

    @cached_property
    def query_starts(self) -> tuple[int, ...]:
        """[B+1] exclusive prefix sum of ``query_lens``."""
        return (0, *accumulate(self.query_lens))

    @cached_property
    def seq_lens(self) -> tuple[int, ...]:
        """[B] lengths including this pass's tokens."""
        return tuple(p + n for p, n in zip(self.start_positions, self.query_lens, strict=True))

    @property
    def num_reqs(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return self.query_starts[-1]

    @property
    def num_prefill_tokens(self) -> int:
        return self.query_starts[self.num_prefill_reqs]

    @property
    def mode(self) -> ForwardMode:
        return ForwardMode.of(num_prefill_reqs=self.num_prefill_reqs, num_reqs=self.num_reqs)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """[T] absolute position of every packed token."""
        return tuple(p + j for p, n in zip(self.start_positions, self.query_lens, strict=True) for j in range(n))

    @cached_property
    def token_reqs(self) -> tuple[int, ...]:
        """[T] batch index (not row) of the request that every packed token belongs to."""
        return tuple(b for b, n in enumerate(self.query_lens) for _ in range(n))
