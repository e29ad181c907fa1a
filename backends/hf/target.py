"""HfTarget: a transformers model as ``specdec.api.Target`` over dense caches by engine row.

The engine's pages only count how much a request holds; keys and values lie in one row per engine row, so block tables
are not read. ``RecomputeTarget`` is for models whose state cannot go back: it runs every text from its beginning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from backends.hf.cache import RowCache
from backends.hf.model import CausalModel, ModelOutput
from backends.hf.passes import Part, fixed_parts_of, parts_of, spans_of
from backends.hf.placement import Placement, place
from specdec.api import CacheGroupSpec, RoundLayout, Tables, TargetOutput
from specdec.cache.spec import Retention
from specdec.errors import MetadataError, UnsupportedError

GROUP_ID = "hf.kv"
ROWS_PER_PAGE = 16
KV_GROUP = CacheGroupSpec(group_id=GROUP_ID, retention=Retention.FULL_HISTORY, rows_per_page=ROWS_PER_PAGE)


@dataclass(frozen=True, kw_only=True, slots=True)
class HfPassConfig:
    """How passes run.

    max_rows    engine rows
    fixed_rows  tokens that every call is padded to, so that a result does not depend on what shares a pass; None:
                calls are as wide as they need to be
    """

    max_rows: int
    fixed_rows: int | None = None


class HfTarget:
    """Keeps keys and values of every engine row, and how many slots of each are written."""

    def __init__(self, model: CausalModel, config: HfPassConfig) -> None:
        self.vocab_size = model.vocab_size
        self.max_context = model.max_context
        self.device = model.device
        self.cache_groups = (KV_GROUP,)
        self._model = model
        self._config = config
        self._cache = RowCache(num_layers=model.num_layers, max_rows=config.max_rows)
        self._num_written = [0] * config.max_rows

    def forward(
        self,
        layout: RoundLayout,
        tokens_T: torch.Tensor,
        tables: Tables,
        *,
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run one pass; see ``api.Target.forward``, and ``api.TreeTarget`` for trees.

        Raises MetadataError for a start beyond what is cached, and UnsupportedError for a tree that the model or
        calls of one shape cannot run.
        """
        if layout.has_trees:
            self._check_trees()
        spans = spans_of(layout)
        for span in spans:
            written = self._num_written[span.row]
            if span.start > written:
                raise MetadataError(f"row {span.row} continues at position {span.start}, {written} are cached")
            self._num_written[span.row] = span.end
        fixed_rows = self._config.fixed_rows
        if fixed_rows is None:
            parts = parts_of(spans, num_chunks=layout.num_prefill_reqs)
        else:
            parts = fixed_parts_of(spans, fixed_rows=fixed_rows)
        collected = Collected(layout, hidden=bool(hidden_layers))
        for part in parts:
            places = part.columns_of(layout.logit_rows)
            columns = self._columns(part, places.values())
            placement = place(part, tokens_T, dtype=self._model.dtype)
            output = self._model.cached(placement, self._cache, columns=columns, hidden_layers=hidden_layers)
            collected.add(placement, output, places, columns)
        return collected.output()

    def keep_paths(self, layout: RoundLayout, paths: Sequence[Sequence[int]], tables: Tables) -> None:
        """Gather keys and values of the accepted nodes behind each other; see ``api.TreeTarget``."""
        for row, start, path in zip(layout.rows, layout.start_positions, paths, strict=True):
            moved = [(start + 1 + node, start + 1 + i) for i, node in enumerate(path) if node != i]
            if moved:
                self._cache.move(row, *zip(*moved, strict=True))

    def _check_trees(self) -> None:
        if not self._model.takes_positions:
            raise UnsupportedError(
                f"{self._model.name} counts positions itself, so siblings cannot share one: no trees"
            )
        if self._config.fixed_rows is not None:
            raise UnsupportedError(f"{self._model.name}: calls of one shape (fixed_rows) run chains, not trees")

    def _columns(self, part: Part, places: Iterable[tuple[int, int]]) -> list[int]:
        """Columns whose logits are computed; all of them where the head, too, must always have one shape."""
        if self._config.fixed_rows is not None:
            return list(range(part.width))
        return sorted({column for _, column in places}) or [part.width - 1]


class Collected:
    """Rows of the calls of one pass, put back into packed order."""

    def __init__(self, layout: RoundLayout, *, hidden: bool) -> None:
        self._layout = layout
        self._hidden = hidden
        self._logits: dict[int, torch.Tensor] = {}
        self._states: list[tuple[Part, torch.Tensor]] = []
        self._whole: torch.Tensor | None = None

    def add(
        self,
        placement: Placement,
        output: ModelOutput,
        places: dict[int, tuple[int, int]],
        columns: Sequence[int],
    ) -> None:
        """Take the wanted rows of one call."""
        if places:
            logits_RV = _wanted_rows(output.logits_BCV, places, columns).float()
            if tuple(places) == self._layout.logit_rows:
                self._whole = logits_RV
            else:
                self._logits.update(zip(places, logits_RV, strict=True))
        if output.hidden_BQD is not None:
            self._states.append((placement.part, output.hidden_BQD))

    def output(self) -> TargetOutput:
        """The result of the pass."""
        logits_RV = self._whole
        if logits_RV is None and self._layout.logit_rows:
            logits_RV = torch.stack([self._logits[index] for index in self._layout.logit_rows])
        if logits_RV is None:
            logits_RV = torch.zeros(0, 1)
        return TargetOutput(logits_RV=logits_RV, hidden_TD=self._packed_states() if self._hidden else None)

    def _packed_states(self) -> torch.Tensor:
        slices = {
            span.first: hidden_BQD[b, : span.length]
            for part, hidden_BQD in self._states
            for b, span in enumerate(part.spans)
        }
        return torch.cat([slices[first] for first in sorted(slices)])


def _wanted_rows(logits_BCV: torch.Tensor, places: dict[int, tuple[int, int]], columns: Sequence[int]) -> torch.Tensor:
    """Logits at the places, in their order; a view where they are all rows of the only request."""
    if [(0, column) for column in columns] == list(places.values()):
        return logits_BCV[0]
    at = {column: index for index, column in enumerate(columns)}
    batch_R = torch.tensor([b for b, _ in places.values()], device=logits_BCV.device)
    column_R = torch.tensor([at[column] for _, column in places.values()], device=logits_BCV.device)
    return logits_BCV[batch_R, column_R]


class RecomputeTarget:
    """Keeps the token ids of every engine row and runs them whole in every pass: exact for any model, and slow."""

    def __init__(self, model: CausalModel) -> None:
        self.vocab_size = model.vocab_size
        self.max_context = model.max_context
        self.device = model.device
        self.cache_groups = (KV_GROUP,)
        self._model = model
        self._known: dict[int, list[int]] = {}

    def forward(
        self,
        layout: RoundLayout,
        tokens_T: torch.Tensor,
        tables: Tables,
        *,
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run one pass; see ``api.Target.forward``. Raises MetadataError for a start beyond what is known."""
        tokens = tokens_T.tolist()
        wanted = set(layout.logit_rows)
        logits, states = [], []
        for span in spans_of(layout):
            known = self._known.setdefault(span.row, [])
            if span.start > len(known):
                raise MetadataError(f"row {span.row} continues at position {span.start}, {len(known)} are known")
            known[span.start :] = tokens[span.first : span.first + span.length]
            columns = [span.start + j for j in range(span.length) if span.first + j in wanted]
            ids_1Q = torch.tensor([known], dtype=torch.int64, device=self.device)
            output = self._model.uncached(ids_1Q, columns=columns or [span.end - 1], hidden_layers=hidden_layers)
            if columns:
                logits.append(output.logits_BCV[0].float())
            if output.hidden_BQD is not None:
                states.append(output.hidden_BQD[0, span.start :])
        logits_RV = torch.cat(logits) if logits else torch.zeros(0, self.vocab_size, device=self.device)
        return TargetOutput(logits_RV=logits_RV, hidden_TD=torch.cat(states) if states else None)
