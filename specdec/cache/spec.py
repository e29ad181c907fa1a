"""CacheGroupSpec: how the pages of one cache group are cut; knows nothing of models or of allocation.

Vocabulary: a *row* is one stored vector; it covers ``entry_stride_tokens`` raw tokens. A *page* holds
``rows_per_page`` rows and so covers ``tokens_per_page`` raw tokens. A *slot* is
``page * rows_per_page + row``.
"""

from dataclasses import dataclass
from enum import Enum

from specdec.errors import ConfigError

PAD_SLOT = -1
DUMMY_PAGE = 0


class Retention(Enum):
    """How long pages live: as long as the request, or until they leave its sliding window."""

    FULL_HISTORY = "full_history"
    SLIDING_WINDOW = "sliding_window"


class Family(Enum):
    """What prefix reuse needs: the whole chain of pages, or only the trailing window."""

    HISTORY = "history"
    STATE = "state"


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded towards plus infinity; ``divisor`` is positive."""
    return -(-value // divisor)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheGroupSpec:
    """One group of pages. Raises ConfigError for sizes that cannot be a group.

    group_id              opaque name, for example ``v4.swa_kv``
    retention             page lifetime
    rows_per_page         R, rows of one page
    entry_stride_tokens   E, raw tokens covered by one row
    sliding_window_tokens W, window in raw tokens counting the current one; 0 for full history
    family                prefix-reuse family
    """

    group_id: str
    retention: Retention
    rows_per_page: int
    entry_stride_tokens: int = 1
    sliding_window_tokens: int = 0
    family: Family = Family.HISTORY

    def __post_init__(self) -> None:
        for name in ("rows_per_page", "entry_stride_tokens"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{self.group_id}: {name} must be at least 1, got {getattr(self, name)}")
        sliding = self.retention is Retention.SLIDING_WINDOW
        if sliding and self.sliding_window_tokens <= 0:
            raise ConfigError(
                f"{self.group_id}: a sliding group needs sliding_window_tokens of at least 1, "
                f"got {self.sliding_window_tokens}"
            )
        if not sliding and self.sliding_window_tokens != 0:
            raise ConfigError(f"{self.group_id}: a full-history group has no window, got {self.sliding_window_tokens}")

    @property
    def is_sliding(self) -> bool:
        """Whether rows that a window has left behind are given back."""
        return self.retention is Retention.SLIDING_WINDOW

    @property
    def tokens_per_page(self) -> int:
        """Raw tokens that the rows of a page stand for."""
        return self.rows_per_page * self.entry_stride_tokens

    def pages_for(self, num_tokens: int) -> int:
        """Logical pages that cover raw positions ``[0, num_tokens)``."""
        return ceil_div(ceil_div(num_tokens, self.entry_stride_tokens), self.rows_per_page)
