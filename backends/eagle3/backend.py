"""Eagle3Backend: an EAGLE-3 head as ``specdec.api.DraftBackend``, with a dense cache of its own by engine row.

A round is ``begin_draft`` (catch up over the rows of the target's pass), then per further draft token
``advance_draft_forward_metadata`` and ``forward``, or per level of a tree ``forward_level``. Slots of rejected tokens
are rewritten by the next catch-up before any query sees them. Nothing is read back from the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.eagle3.cache import CacheRows, DraftCache
from backends.eagle3.model import Eagle3Model, masked_attention
from backends.eagle3.tree import TreeNodes, seen_slots
from specdec.api import CacheGroupSpec, DraftInput, RoundLayout
from specdec.errors import CapacityError, ConfigError, MetadataError


class Eagle3Backend:
    """Keeps the cache, and between the calls of one round the own states of its requests.

    model        the head
    num_streams  residual streams of the target; their states arrive flattened
    max_rows     engine rows

    Raises ConfigError when the head was made for states of another width.
    """

    cache_groups: tuple[CacheGroupSpec, ...] = ()

    def __init__(self, model: Eagle3Model, *, target_hidden_size: int, num_streams: int = 1, max_rows: int) -> None:
        config = model.config
        self.state_width = num_streams * target_hidden_size
        if config.target_hidden_size not in (self.state_width, target_hidden_size):
            allowed = sorted({self.state_width, target_hidden_size})
            raise ConfigError(
                f"the EAGLE-3 head reads states of width {config.target_hidden_size}, the target's layers give "
                f"{' or '.join(map(str, allowed))} (conf: drafter.checkpoint)"
            )
        self.model = model.eval()
        self.hidden_layers: tuple[int, ...] = config.hidden_layers
        self._max_rows = max_rows
        self._cache = DraftCache(
            max_rows=max_rows,
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            like=model.fc.weight,
        )
        self._rows: CacheRows | None = None
        self._own_BD = torch.empty(0)
        self._positions_B = torch.empty(0)
        self._num_slots = 0
        self._nodes: TreeNodes | None = None

    @torch.no_grad()
    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Catch up over every row of the pass, prompt chunks and verified rows alike.

        Returns logits float32 [B, V] of each request's newest committed row. Raises MetadataError without the states of
        the three layers and CapacityError for a row that does not exist.
        """
        layout, device = inputs.layout, self.model.fc.weight.device
        self._check(inputs)
        self._cache.reserve(max(layout.seq_lens, default=0))
        fused_TD = self.model.fuse(inputs.hidden_TD)
        own_TD = torch.empty_like(fused_TD)
        for members in _calls(layout):
            call = _call(layout, members, device)
            own_BQD = self._run(call, fused_TD[call.index_BQ], inputs.next_tokens_T[call.index_BQ])
            own_TD[call.packed_T] = own_BQD[call.batch_T, call.column_T]
        self._rows = CacheRows.of(layout.rows, device)
        self._num_slots = max(layout.seq_lens, default=0)
        self._own_BD = own_TD[inputs.newest_rows()]
        self._nodes = TreeNodes(self._own_BD)
        return self.model.target_logits(self._own_BD)

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The next ``forward`` feeds position ``seq_lens_B - 1``; raises MetadataError before ``begin_draft``."""
        if self._rows is None or len(seq_lens_B) != len(self._rows):
            raise MetadataError("draft metadata was not initialized for these requests: begin_draft opens a draft")
        self._positions_B = seq_lens_B - 1
        # No request is longer than the longest of the pass and one slot for each step: known without asking the device.
        self._num_slots += 1
        self._cache.reserve(self._num_slots)

    @torch.no_grad()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One draft step with the tokens drafted last, int64 [B]; logits float32 [B, V]."""
        rows = self._rows
        assert rows is not None, "advance_draft_forward_metadata comes first"
        positions_B1, num_slots = self._positions_B[:, None], self._num_slots
        slots_W = torch.arange(num_slots, device=positions_B1.device)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self._cache.write(rows.index_B, self._positions_B, key[:, 0], value[:, 0])
            return masked_attention(query, *self._cache.read(rows, num_slots), slots_W <= positions_B1[..., None])

        own_B1D = self.model(self._own_BD[:, None], tokens_B[:, None], positions_B1, attend)
        self._own_BD = own_B1D[:, 0]
        return self.model.target_logits(self._own_BD)

    @torch.no_grad()
    def forward_level(
        self, seq_lens_B: torch.Tensor, tokens_BM: torch.Tensor, parents_BM: torch.Tensor
    ) -> torch.Tensor:
        """Feed the next level of a draft tree; logits float32 [B, M, V]. Raises MetadataError before ``begin_draft``.

        seq_lens_B  int64 committed positions; the nodes lie behind them in the cache, as they are fed
        parents_BM  int64 number of each node's parent among the nodes fed in this round, -1 for the newest token
        """
        rows, nodes = self._rows, self._nodes
        if rows is None or nodes is None:
            raise MetadataError("draft metadata was not initialized: begin_draft opens a draft")
        first, num_new = nodes.num_nodes, tokens_BM.shape[1]
        num_slots = self._num_slots + first + num_new
        self._cache.reserve(num_slots)
        sees_BMN = nodes.ancestry(parents_BM)
        slots_BM = seq_lens_B[:, None] + first + torch.arange(num_new, device=seq_lens_B.device)
        positions_BM = (seq_lens_B[:, None] + nodes.num_levels).expand_as(tokens_BM)
        seen_BMW = seen_slots(seq_lens_B, sees_BMN, num_slots)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self._cache.write(rows.index_B[:, None].expand_as(slots_BM), slots_BM, key, value)
            return masked_attention(query, *self._cache.read(rows, num_slots), seen_BMW)

        own_BMD = self.model(nodes.states_of(parents_BM), tokens_BM, positions_BM, attend)
        nodes.add(own_BMD, sees_BMN)
        return self.model.target_logits(own_BMD)

    def _run(self, call: "_Call", fused_BQD: torch.Tensor, tokens_BQ: torch.Tensor) -> torch.Tensor:
        """Own states [B, Q, D] of some requests of the pass; writes the slots of their real tokens."""
        slots_W = torch.arange(call.num_slots, device=fused_BQD.device)
        rows_T, slots_T = call.rows.index_B[call.batch_T], call.positions_BQ[call.batch_T, call.column_T]

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            real = call.batch_T, call.column_T
            self._cache.write(rows_T, slots_T, key[real], value[real])
            keys, values = self._cache.read(call.rows, call.num_slots)
            return masked_attention(query, keys, values, slots_W <= call.positions_BQ[..., None])

        return self.model(fused_BQD, tokens_BQ, call.positions_BQ, attend)

    def _check(self, inputs: DraftInput) -> None:
        if inputs.hidden_TD is None:
            raise MetadataError(
                f"EAGLE-3 drafting needs the target's states of layers {list(self.hidden_layers)}, got none"
            )
        got, wanted = inputs.hidden_TD.shape[-1], len(self.hidden_layers) * self.state_width
        if got != wanted:
            raise MetadataError(
                f"EAGLE-3 drafting needs states of layers {list(self.hidden_layers)}, {wanted} wide together, got {got}"
            )
        if max(inputs.layout.rows, default=0) >= self._max_rows:
            raise CapacityError(
                f"row {max(inputs.layout.rows)} exceeds the {self._max_rows} rows of the EAGLE-3 cache "
                "(conf: engine.max_batch)"
            )


def _calls(layout: RoundLayout) -> list[list[int]]:
    """Requests that are computed together: each prompt chunk alone, all decode rows side by side."""
    chunks = [[b] for b in range(layout.num_prefill_reqs) if layout.query_lens[b]]
    rows = [b for b in range(layout.num_prefill_reqs, layout.num_reqs) if layout.query_lens[b]]
    return [*chunks, rows] if rows else chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """Requests that are computed together, padded to one width; all of it known on the host.

    index_BQ      packed index of every column; padding repeats a request's last token
    positions_BQ  their positions; those of padding lie beyond the request
    rows          engine rows
    packed_T, batch_T, column_T  of the real tokens
    num_slots     slots that their queries are shown
    """

    index_BQ: torch.Tensor
    positions_BQ: torch.Tensor
    rows: CacheRows
    packed_T: torch.Tensor
    batch_T: torch.Tensor
    column_T: torch.Tensor
    num_slots: int


def _call(layout: RoundLayout, members: Sequence[int], device: torch.device) -> _Call:
    lens, firsts = [layout.query_lens[b] for b in members], [layout.query_starts[b] for b in members]
    starts = [layout.start_positions[b] for b in members]
    columns = range(max(lens))
    index = [[first + min(c, length - 1) for c in columns] for first, length in zip(firsts, lens, strict=True)]
    positions = [[start + c for c in columns] for start in starts]
    real = [(firsts[b] + c, b, c) for b, length in enumerate(lens) for c in range(length)]
    real_3T = torch.tensor(real, dtype=torch.int64).T.to(device)
    return _Call(
        index_BQ=torch.tensor(index, dtype=torch.int64).to(device),
        positions_BQ=torch.tensor(positions, dtype=torch.int64).to(device),
        rows=CacheRows.of([layout.rows[b] for b in members], device),
        packed_T=real_3T[0],
        batch_T=real_3T[1],
        column_T=real_3T[2],
        num_slots=max(layout.seq_lens[b] for b in members),
    )
