"""Parts: how one engine pass is cut into calls of a model with dense caches; host integers only, pure.

Letters besides those of ``specdec.api``: **Q** token columns of a call, **W** cached slots that its queries are shown.
A *slot* is the place of a token in the cache of its row: its position, or for a node of a tree ``RoundLayout.places``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from specdec.api import DraftTree
from specdec.layout import RoundLayout

KV_BLOCK = 64
"""Keys are shown in multiples of it under ``batch_invariant``: kernels sum other widths in another order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Consecutive tokens of one request in a pass.

    row     engine row
    start   slot of the first token
    length  tokens, at least 1
    first   index of the first token among the packed tokens of the pass
    tree    shape of the tokens beyond the first, parents before their children; None: a chain
    """

    row: int
    start: int
    length: int
    first: int
    tree: DraftTree | None = None

    @property
    def offsets(self) -> Sequence[int]:
        """Distance of each token's position from that of the first one."""
        return range(self.length) if self.tree is None else (0, *self.tree.depths)

    @property
    def end(self) -> int:
        """Slot behind the last token."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True)
class Part:
    """One call of the model: spans side by side, each padded to ``width`` columns.

    spans     [B] in ascending order of rows
    width     Q
    kv_width  W
    """

    spans: tuple[Span, ...]
    width: int
    kv_width: int

    @property
    def rows(self) -> tuple[int, ...]:
        """[B] engine rows of the spans."""
        return tuple(span.row for span in self.spans)

    @property
    def has_trees(self) -> bool:
        """Whether any span is a tree."""
        return any(span.tree is not None for span in self.spans)

    @cached_property
    def is_dense(self) -> bool:
        """Whether the rows are consecutive, so that a slice holds them."""
        return all(after == before + 1 for before, after in pairwise(self.rows))

    def columns_of(self, wanted: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Where packed tokens are found in this call: packed index -> (batch index, column); others are left out."""
        places = {}
        for index in wanted:
            for b, span in enumerate(self.spans):
                if span.first <= index < span.first + span.length:
                    places[index] = (b, index - span.first)
        return places


def spans_of(layout: RoundLayout) -> tuple[Span, ...]:
    """One span per request that has tokens in the pass, in batch order."""
    trees = layout.trees or (None,) * layout.num_reqs
    rows = zip(layout.rows, layout.start_positions, layout.query_lens, layout.query_starts, trees, strict=False)
    return tuple(
        Span(row=row, start=start, length=n, first=first, tree=tree) for row, start, n, first, tree in rows if n
    )


def parts_of(spans: Sequence[Span], *, num_chunks: int) -> tuple[Part, ...]:
    """Calls for a pass: each of the leading ``num_chunks`` prompt chunks alone, all other spans in one batch.

    A chunk fills a call by itself; side by side with decode rows most columns would be padding.
    """
    groups = [[span] for span in spans[:num_chunks]]
    if len(spans) > num_chunks:
        groups.append(sorted(spans[num_chunks:], key=lambda span: span.row))
    return tuple(
        Part(
            spans=tuple(group),
            width=max(span.length for span in group),
            kv_width=max(span.end for span in group),
        )
        for group in groups
    )


def fixed_parts_of(spans: Sequence[Span], *, fixed_rows: int) -> tuple[Part, ...]:
    """Calls of one shape: a request at a time, ``fixed_rows`` columns, keys in whole blocks.

    A span is cut where it crosses a block, so that the shape in which a token is computed follows from its slot alone.
    """
    parts = []
    for span in spans:
        start = span.start
        while start < span.end:
            block_end = (start // KV_BLOCK + 1) * KV_BLOCK
            length = min(span.end, block_end, start + fixed_rows) - start
            cut = Span(row=span.row, start=start, length=length, first=span.first + start - span.start)
            parts.append(Part(spans=(cut,), width=fixed_rows, kv_width=block_end))
            start += length
    return tuple(parts)
