"""PagedRuns: passes of a target over texts of one's own choosing, through pages as an engine would reserve them.

For checks of models: every row of every pass gives its logits, and any split of a text into passes can be asked for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from specdec.api import CacheGroupSpec, RoundLayout, Tables, Target
from specdec.cache.allocator import CacheManager
from specdec.cache.tables import BlockTables
from specdec.engine_config import CachePlan, EngineConfig, plan_cache

NUM_ROWS = 4
NUM_DRAFT_TOKENS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a text in one pass.

    row       of the request
    start     position of its first token
    tokens    the part
    is_chunk  a prompt chunk; False: decode or verify rows
    """

    row: int
    start: int
    tokens: tuple[int, ...]
    is_chunk: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A pass that ran: logits float32 [n, V] of every token of each piece, hidden states of all, and where it wrote."""

    layout: RoundLayout
    logits: tuple[torch.Tensor, ...]
    hidden_TD: torch.Tensor | None
    tables: Tables


def plan_for(
    cache_groups: Sequence[CacheGroupSpec], *, num_tokens: int, draft_groups: Collection[str] = ()
) -> CachePlan:
    """Pages that checks over texts of ``num_tokens`` tokens need; a target under check must have them."""
    config = EngineConfig(max_batch=NUM_ROWS, prefill_chunk=num_tokens)
    return plan_cache(
        cache_groups,
        config,
        max_context=num_tokens,
        num_draft_tokens=NUM_DRAFT_TOKENS,
        draft_groups=draft_groups,
    )


class PagedRuns:
    """Owns pages and block tables for a target under check; rows are 0..3."""

    def __init__(self, target: Target, *, num_tokens: int, draft_groups: Collection[str] = ()) -> None:
        self._target = target
        plan = plan_for(target.cache_groups, num_tokens=num_tokens, draft_groups=draft_groups)
        self._pages = CacheManager(plan.specs, plan.num_pages, max_rows=NUM_ROWS, draft_groups=plan.draft_groups)
        self._tables = BlockTables(plan.specs, plan.columns, max_rows=NUM_ROWS, device=target.device)

    def run(self, *pieces: Piece, hidden_layers: tuple[int, ...] = (), reach: int = 0) -> Ran:
        """One pass over ``pieces``, chunks first; ``reach``: positions behind each that a draft may write."""
        # Rows that have left their windows behind give pages back before a new text takes some.
        for piece in sorted(pieces, key=lambda piece: piece.is_chunk):
            self._pages.reserve_chunk(piece.row, piece.start, len(piece.tokens), extra=reach)
        self._tables.write(self._pages.take_changes())
        lengths = tuple(len(piece.tokens) for piece in pieces)
        layout = RoundLayout(
            rows=tuple(piece.row for piece in pieces),
            start_positions=tuple(piece.start for piece in pieces),
            query_lens=lengths,
            num_prefill_reqs=sum(piece.is_chunk for piece in pieces),
            logit_rows=tuple(range(sum(lengths))),
        )
        tokens_T = torch.tensor([t for piece in pieces for t in piece.tokens], device=self._target.device)
        tables = self._tables.view(layout.rows)
        with torch.no_grad():
            output = self._target.forward(layout, tokens_T, tables, hidden_layers=hidden_layers)
        assert output.logits_RV.shape == (len(tokens_T), self._target.vocab_size), "logits: one row per logit_rows"
        return Ran(layout=layout, logits=output.logits_RV.split(lengths), hidden_TD=output.hidden_TD, tables=tables)

    def roll_back(self, row: int, committed: int) -> None:
        """Drop what a verify pass wrote beyond ``committed`` positions."""
        self._pages.roll_back(row, committed)

    def release(self, *rows: int) -> None:
        """Return the pages of finished requests."""
        for row in rows:
            self._pages.release(row)
