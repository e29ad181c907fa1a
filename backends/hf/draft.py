"""HfDraft: an independent transformers model as ``specdec.api.DraftBackend``, with a cache of its own by engine row.

It catches up from token ids alone (``DraftInput.histories``), and only for requests that want a draft. What it was fed
is remembered per row, so that drafted tokens that were rejected are found by comparison and computed anew.
"""

from collections.abc import Sequence

import torch

from backends.hf.cache import RowCache
from backends.hf.model import CausalModel
from backends.hf.passes import Span, parts_of
from backends.hf.placement import place
from backends.hf.vocabulary import VocabularyMap
from specdec.api import CacheGroupSpec, DraftInput, DraftTree
from specdec.errors import MetadataError

LONG_SPAN = 32
"""From so many tokens on a catch-up is a call of its own."""
MAX_SPAN = 512
"""Most tokens of a call; a long prompt takes several."""


class HfDraft:
    """Keeps the cache, and per row the target ids that are in it.

    model       the draft model
    vocabulary  the target's ids in the model's vocabulary
    max_rows    engine rows
    """

    cache_groups: tuple[CacheGroupSpec, ...] = ()

    def __init__(self, model: CausalModel, vocabulary: VocabularyMap, *, max_rows: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._cache = RowCache(num_layers=model.num_layers, max_rows=max_rows)
        self._fed: list[list[int]] = [[] for _ in range(max_rows)]
        self._rows: tuple[int, ...] = ()
        self._wanted: tuple[bool, ...] = ()
        self._lengths: list[int] = []
        self._nodes: dict[int, tuple[list[int], list[int]]] = {}

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Feed what the model has not seen of the texts that want a draft; logits_BV after their newest tokens.

        Rows of the other requests are zero. Raises MetadataError without histories.
        """
        self._rows, self._wanted = inputs.layout.rows, inputs.wanted_B
        self._nodes = {row: ([], []) for row, wanted in zip(self._rows, self._wanted, strict=True) if wanted}
        if len(inputs.histories) != len(self._rows):
            raise MetadataError("an independent draft model reads token ids: its drafter must declare needs.history")
        new = {}
        for row, wanted, history in zip(self._rows, self._wanted, inputs.histories, strict=True):
            if wanted:
                # The newest token is always fed: its logits are asked for.
                start = min(shared_prefix(self._fed[row], history), len(history) - 1)
                new[row] = (start, list(history[start:]))
        return self._feed(new)

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The next ``forward`` feeds position ``seq_lens_B - 1``; reads the lengths on the host."""
        self._lengths = seq_lens_B.tolist()

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Feed one token to every request that wants a draft; logits_BV, zero for the others."""
        rows = zip(self._rows, self._wanted, self._lengths, tokens_B.tolist(), strict=True)
        return self._feed({row: (length - 1, [token]) for row, wanted, length, token in rows if wanted})

    def forward_level(
        self, seq_lens_B: torch.Tensor, tokens_BM: torch.Tensor, parents_BM: torch.Tensor
    ) -> torch.Tensor:
        """Feed one more level of nodes to every request that wants a draft; logits [B, M, V], zero for the others.

        parents_BM  number of each node's parent among those fed since ``begin_draft``, -1 for the newest token

        The tree is run whole from the newest token on, behind what is committed, and nothing of it is remembered. A
        request without a position for another level stands aside.
        """
        num_new = tokens_BM.shape[1]
        spans, packed = [], []
        lines = zip(self._rows, tokens_BM.tolist(), parents_BM.tolist(), strict=True)
        for row, tokens, parents in lines:
            if row not in self._nodes:
                continue
            known, shape = self._nodes[row]
            tree = DraftTree((*shape, *parents))
            start = len(self._fed[row]) - 1
            if start + tree.depth >= self._model.max_context:
                del self._nodes[row]
                continue
            known.extend(tokens)
            shape.extend(parents)
            span = Span(row=row, start=start, length=1 + tree.num_nodes, first=len(packed), tree=tree)
            spans.append(span)
            packed.extend([self._fed[row][-1], *known])
        found: dict[int, torch.Tensor] = {}
        for part in parts_of(spans, num_chunks=0):
            ids_T = self._vocabulary.ids(torch.tensor(packed, dtype=torch.int64, device=self._model.device))
            placement = place(part, ids_T, dtype=self._model.dtype)
            columns = range(part.width - num_new, part.width)
            logits_BCX = self._model.cached(placement, self._cache, columns=columns).logits_BCV
            logits_BCV = self._vocabulary.logits(logits_BCX.flatten(0, 1)).unflatten(0, logits_BCX.shape[:2])
            found.update(zip(part.rows, logits_BCV, strict=True))
        idle_MV = torch.zeros(num_new, len(self._vocabulary.to_draft_V), device=self._model.device)
        return torch.stack([found.get(row, idle_MV) for row in self._rows])

    def _feed(self, new: dict[int, tuple[int, list[int]]]) -> torch.Tensor:
        """Run ``row -> (start, tokens)``; logits_BV after the last token of each row, in batch order."""
        logits: dict[int, torch.Tensor] = {}
        while new:
            now = {row: (start, tokens[:MAX_SPAN]) for row, (start, tokens) in new.items()}
            logits.update(self._call(now))
            new = {
                row: (start + MAX_SPAN, tokens[MAX_SPAN:])
                for row, (start, tokens) in new.items()
                if len(tokens) > MAX_SPAN
            }
        size = len(self._vocabulary.to_draft_V)
        idle_V = torch.zeros(size, device=self._model.device)
        return torch.stack([logits.get(row, idle_V) for row in self._rows])

    def _call(self, new: dict[int, tuple[int, list[int]]]) -> dict[int, torch.Tensor]:
        # Long spans first: those run alone.
        rows = sorted(new, key=lambda row: len(new[row][1]), reverse=True)
        spans, packed = [], []
        for row in rows:
            start, tokens = new[row]
            assert start <= len(self._fed[row]), "a draft model is fed without gaps"
            self._fed[row][start:] = tokens
            spans.append(Span(row=row, start=start, length=len(tokens), first=len(packed)))
            packed.extend(tokens)
        ids_T = self._vocabulary.ids(torch.tensor(packed, dtype=torch.int64, device=self._model.device))
        found = {}
        for part in parts_of(spans, num_chunks=sum(span.length >= LONG_SPAN for span in spans)):
            columns = sorted({span.length - 1 for span in part.spans})
            placement = place(part, ids_T, dtype=self._model.dtype)
            logits_BCX = self._model.cached(placement, self._cache, columns=columns).logits_BCV
            last_C = torch.tensor([columns.index(span.length - 1) for span in part.spans], device=logits_BCX.device)
            rows_BX = logits_BCX[torch.arange(len(part.spans), device=logits_BCX.device), last_C]
            found.update(zip(part.rows, self._vocabulary.logits(rows_BX), strict=True))
        return found


def shared_prefix(old: Sequence[int], new: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    length = min(len(old), len(new))
    if list(old[:length]) == list(new[:length]):
        return length
    return next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
