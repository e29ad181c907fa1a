"""RoundLayout: which tokens of which requests one forward pass computes; host integers only.

It is the single source of lengths. Device tensors are made from it; nothing is ever read back.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate

from specdec.errors import MetadataError
from specdec.trees.draft_tree import DraftTree


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
        """Whether a pass of this mode has no prompt chunk."""
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    @property
    def is_extend_or_mixed(self) -> bool:
        """Whether a pass of this mode has prompt chunks."""
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


@dataclass(frozen=True, kw_only=True)
class RoundLayout:
    """One forward pass over ``B`` requests and ``T`` packed tokens, request-major, prompt chunks first.

    rows              [B] stable row of each request (row of its block tables and of per-request state)
    start_positions   [B] position of the first query token (= positions already committed to the cache)
    query_lens        [B] tokens of this pass per request, at least 1
    num_prefill_reqs  how many leading requests are prompt chunks
    logit_rows        packed token indices whose logits are wanted, ascending
    trees             [B] the tree that a request's tokens beyond its first one form, parents before their children, or
                      None where its tokens follow one another; empty when no request has a tree. Siblings share a
                      position, so the token at offset j of a tree has position ``start + depth`` and is kept, until
                      the verdict, at the place of position ``start + j`` (see ``api.TreeTarget``)

    Raises MetadataError when lengths disagree, and for a tree that is not of these tokens or not in order.
    """

    rows: tuple[int, ...]
    start_positions: tuple[int, ...]
    query_lens: tuple[int, ...]
    num_prefill_reqs: int = 0
    logit_rows: tuple[int, ...] = ()
    trees: tuple[DraftTree | None, ...] = ()

    def __post_init__(self) -> None:
        num_reqs = len(self.rows)
        if not len(self.start_positions) == len(self.query_lens) == num_reqs:
            raise MetadataError(
                f"rows, start_positions and query_lens must have one entry per request, got "
                f"{num_reqs}, {len(self.start_positions)} and {len(self.query_lens)}"
            )
        if not 0 <= self.num_prefill_reqs <= num_reqs:
            raise MetadataError(f"num_prefill_reqs must be 0..{num_reqs}, got {self.num_prefill_reqs}")
        if min(self.query_lens, default=0) < 0 or min(self.start_positions, default=0) < 0:
            raise MetadataError(f"negative length in {self.query_lens} or position in {self.start_positions}")
        if self.logit_rows and not 0 <= self.logit_rows[0] <= self.logit_rows[-1] < sum(self.query_lens):
            raise MetadataError(f"logit_rows must lie in 0..{self.num_tokens - 1}, got {self.logit_rows}")
        if self.trees:
            self._check_trees()

    def _check_trees(self) -> None:
        if len(self.trees) != self.num_reqs:
            raise MetadataError(f"trees must have an entry for each of {self.num_reqs} requests, got {len(self.trees)}")
        for b, tree in enumerate(self.trees):
            if tree is None:
                continue
            if b < self.num_prefill_reqs or tree.num_nodes != self.query_lens[b] - 1:
                raise MetadataError(
                    f"request {b} has {self.query_lens[b]} tokens and a tree of {tree.num_nodes} nodes; a decode row "
                    f"has its newest token and the nodes, a prompt chunk no tree"
                )
            if not tree.is_ordered:
                raise MetadataError(f"parents come before their children in a pass, got {list(tree.parents)}")

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
        """Requests of the pass (B)."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Packed tokens of the pass (T)."""
        return self.query_starts[-1]

    @property
    def num_prefill_tokens(self) -> int:
        """Packed tokens of the prompt chunks, which come first."""
        return sum(self.query_lens[: self.num_prefill_reqs])

    @property
    def mode(self) -> ForwardMode:
        """What the pass holds."""
        return ForwardMode.of(num_prefill_reqs=self.num_prefill_reqs, num_reqs=self.num_reqs)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """[T] absolute position of every packed token; nodes of a tree at one depth share theirs."""
        if not self.has_trees:
            return self.places
        return tuple(
            start + offset
            for b, start in enumerate(self.start_positions)
            for offset in (range(self.query_lens[b]) if self.trees[b] is None else (0, *self.trees[b].depths))
        )

    @cached_property
    def places(self) -> tuple[int, ...]:
        """[T] position at whose place in the caches every packed token is kept: packed order, no two the same."""
        return tuple(p + j for p, n in zip(self.start_positions, self.query_lens, strict=True) for j in range(n))

    @property
    def has_trees(self) -> bool:
        """Whether any request has a tree."""
        return any(tree is not None for tree in self.trees)

    def seen(self, request: int) -> tuple[tuple[int, ...], ...]:
        """Offsets, within the request's tokens of this pass, of the tokens that each of them sees, itself last.

        Besides these every token sees all positions before ``start_positions[request]``.
        """
        tree = self.trees[request] if self.trees else None
        if tree is None:
            return tuple(tuple(range(j + 1)) for j in range(self.query_lens[request]))
        return ((0,), *((0, *(node + 1 for node in tree.path(n))) for n in range(tree.num_nodes)))

    @cached_property
    def token_reqs(self) -> tuple[int, ...]:
        """[T] batch index (not row) of the request that every packed token belongs to."""
        return tuple(b for b, n in enumerate(self.query_lens) for _ in range(n))
