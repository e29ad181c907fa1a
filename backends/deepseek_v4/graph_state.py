"""GraphState: the tensors that captured passes read, made once and only ever copied into.

A captured pass is known by its ``GraphKey``. ``capture`` makes (or refreshes) the buffers of a key, ``replay``
refreshes them for the live requests of a round; both plan like an eager pass, with constant shapes, and copy.
Eager passes have plans of their own and never touch these. Works on any device; records no graph itself. It is for
serving engines that record passes of the facade (``backend``); rounds of this project record ``target.forward_packed``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

import torch

from backends.deepseek_v4.forward_inputs import ForwardInputs, layout_of, tokens_per_request
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import ForwardPlan, PlanShape, PlanSpec
from specdec.api import GroupTable, Tables
from specdec.cache.tables import NO_PAGE
from specdec.errors import MetadataError, UnsupportedError
from specdec.layout import RoundLayout

PAD_LENGTH = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphKey:
    """What a captured pass is known by: requests including padding, and tokens of each."""

    num_reqs: int
    tokens_per_request: int

    @property
    def num_tokens(self) -> int:
        return self.num_reqs * self.tokens_per_request


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphStateInputs:
    """Sizes of the persistent buffers.

    max_batch               most requests of a captured pass
    max_tokens_per_request  most tokens of each (the verify width)
    columns                 block-table columns by cache group
    """

    max_batch: int
    max_tokens_per_request: int
    columns: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphBuffers:
    """The tensors of one key; their addresses never change.

    seq_lens_B       int32 lengths including the pass's tokens; padding has 1
    query_lens_B     int32
    query_starts_B1  int32 [B + 1] exclusive prefix sum of the query lengths
    token_reqs_T     int32 request of each token
    tables           block tables of all groups, padded with -1
    plan             the index tensors of the pass
    """

    key: GraphKey
    seq_lens_B: torch.Tensor
    query_lens_B: torch.Tensor
    query_starts_B1: torch.Tensor
    token_reqs_T: torch.Tensor
    tables: Tables
    plan: ForwardPlan

    @property
    def valid_T(self) -> torch.Tensor:
        """Bool, False for the tokens of padding requests."""
        assert self.plan.valid_T is not None, "a padded plan has a validity mask"
        return self.plan.valid_T


class GraphState:
    """Owns the table arena and the buffers of every key."""

    def __init__(self, spec: PlanSpec, inputs: GraphStateInputs, device: torch.device) -> None:
        self.spec = spec
        self.inputs = inputs
        self.device = device
        self._arena = {
            group_id: GroupTable(
                pages_BC=torch.zeros(inputs.max_batch, inputs.columns[group_id], dtype=torch.int32, device=device),
                base_B=torch.zeros(inputs.max_batch, dtype=torch.int32, device=device) if group.is_sliding else None,
            )
            for group_id, group in spec.groups.items()
        }
        self._buffers: dict[GraphKey, GraphBuffers] = {}

    def capture(self, inputs: ForwardInputs) -> GraphBuffers:
        """Buffers of a pass about to be recorded: all requests live, lengths of at least the pass's width.

        A second capture of the same key refreshes the same tensors. Raises MetadataError for lengths or tables
        that do not fit and UnsupportedError for a pass that is not decode. A group without a table has no page:
        a pass that runs on it discards its rows (page 0 would let it write slot 0, which must stay zero).
        """
        key = self._key(inputs, len(inputs.rows))
        lengths = tuple(max(length, key.tokens_per_request) for length in inputs.seq_lens)
        layout = _layout(inputs, key, lengths)
        self._write_tables(inputs.tables, key, len(inputs.rows))
        if key not in self._buffers:
            self._buffers[key] = self._allocate(key, layout)
        return self._write(self._buffers[key], layout, lengths)

    def replay(self, inputs: ForwardInputs, num_reqs: int) -> GraphBuffers:
        """Buffers of a captured pass of ``num_reqs`` requests, refreshed for the live ones of ``inputs``.

        ``inputs.num_tokens`` counts the tokens of all ``num_reqs`` requests (None: one each). Tables have a row
        per live request or per request of the pass. Raises MetadataError for a key that was not captured or tables
        that do not fit, and UnsupportedError for a pass that is not decode.
        """
        key = self._key(inputs, num_reqs)
        if key not in self._buffers:
            raise MetadataError(f"no pass was captured for {key}, there are {sorted_keys(self._buffers)}")
        layout = _layout(inputs, key, inputs.seq_lens)
        self._write_tables(inputs.tables, key, len(inputs.rows))
        padding = num_reqs - layout.num_reqs
        return self._write(self._buffers[key], layout, inputs.seq_lens + (PAD_LENGTH,) * padding)

    def _key(self, inputs: ForwardInputs, num_reqs: int) -> GraphKey:
        if not inputs.mode.is_decode_or_idle:
            raise UnsupportedError(f"only decode passes are captured, got {inputs.mode.value}")
        live = len(inputs.rows)
        if not live <= num_reqs <= self.inputs.max_batch:
            raise MetadataError(
                f"a captured pass of {num_reqs} requests must hold {live} live ones and at most "
                f"{self.inputs.max_batch} (the graph state's max_batch)"
            )
        width = tokens_per_request(inputs.num_tokens, num_reqs)
        if width > self.inputs.max_tokens_per_request:
            raise MetadataError(
                f"the graph state was initialized for at most {self.inputs.max_tokens_per_request} tokens per "
                f"request, got {width}"
            )
        return GraphKey(num_reqs=num_reqs, tokens_per_request=width)

    def _write_tables(self, given: Tables, key: GraphKey, live: int) -> None:
        """Fill the arena rows of a pass with -1, then copy what was given; other groups are ignored."""
        for group_id, arena in self._arena.items():
            arena.pages_BC[: key.num_reqs].fill_(NO_PAGE)
            if arena.base_B is not None:
                arena.base_B[: key.num_reqs].zero_()
            if group_id in given:
                _copy_table(group_id, given[group_id], arena, {live, key.num_reqs})

    def _allocate(self, key: GraphKey, layout: RoundLayout) -> GraphBuffers:
        """Fresh buffers of a key, its plan included."""
        tables = {
            group_id: GroupTable(
                pages_BC=arena.pages_BC[: key.num_reqs],
                base_B=None if arena.base_B is None else arena.base_B[: key.num_reqs],
            )
            for group_id, arena in self._arena.items()
        }
        lengths = torch.full((key.num_reqs,), key.tokens_per_request, dtype=torch.int32, device=self.device)
        starts = torch.arange(key.num_reqs + 1, dtype=torch.int32, device=self.device)
        return GraphBuffers(
            key=key,
            seq_lens_B=torch.ones_like(lengths),
            query_lens_B=lengths,
            query_starts_B1=starts * key.tokens_per_request,
            token_reqs_T=starts[:-1].repeat_interleave(key.tokens_per_request, output_size=key.num_tokens),
            tables=tables,
            plan=clone_plan(self._plan(key, layout, tables)),
        )

    def _plan(self, key: GraphKey, layout: RoundLayout, tables: Tables) -> ForwardPlan:
        shape = PlanShape(num_reqs=key.num_reqs, num_tokens=key.num_tokens, constant_widths=True, all_boundaries=True)
        return plan_forward(layout, tables, self.spec, device=self.device, shape=shape)

    def _write(self, buffers: GraphBuffers, layout: RoundLayout, lengths: tuple[int, ...]) -> GraphBuffers:
        """Copy lengths and a new plan into the buffers of a key, whose tables are already written."""
        buffers.seq_lens_B.copy_(torch.tensor(lengths, dtype=torch.int32))
        copy_plan(self._plan(buffers.key, layout, buffers.tables), buffers.plan)
        return buffers


def sorted_keys(buffers: Mapping[GraphKey, GraphBuffers]) -> list[tuple[int, int]]:
    """(requests, tokens per request) of all captured passes, for messages."""
    return sorted((key.num_reqs, key.tokens_per_request) for key in buffers)


def pad_tables(tables: Tables, num_reqs: int) -> dict[str, GroupTable]:
    """Tables with rows of -1 and bases of 0 added up to ``num_reqs``; a table of that many rows is passed on."""
    padded = {}
    for group_id, table in tables.items():
        rows = num_reqs - table.pages_BC.shape[0]
        if rows < 0:
            raise MetadataError(f"{group_id}: {table.pages_BC.shape[0]} table rows exceed {num_reqs} requests")
        padded[group_id] = table
        if rows:
            base_B = table.base_B
            padded[group_id] = GroupTable(
                pages_BC=torch.nn.functional.pad(table.pages_BC, (0, 0, 0, rows), value=NO_PAGE),
                base_B=None if base_B is None else torch.nn.functional.pad(base_B, (0, rows)),
            )
    return padded


def clone_plan(plan: ForwardPlan) -> ForwardPlan:
    """The same plan in tensors of its own."""
    return _map_tensors(plan, lambda tensor: tensor.clone(memory_format=torch.contiguous_format))


def copy_plan(source: ForwardPlan, buffers: ForwardPlan) -> None:
    """Copy every tensor of ``source`` into the tensor in the same place of ``buffers``.

    Raises MetadataError when the two differ in shape or in a host value.
    """
    _copy_into(source, buffers, "plan")


def _map_tensors(value, function):
    """A copy of nested dataclasses, mappings and tuples with ``function`` applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if is_dataclass(value):
        return type(value)(**{f.name: _map_tensors(getattr(value, f.name), function) for f in fields(value)})
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map_tensors(item, function) for item in value)
    return value


def _copy_into(source, target, where: str) -> None:
    if isinstance(target, torch.Tensor):
        if not isinstance(source, torch.Tensor) or source.shape != target.shape:
            raise MetadataError(f"{where}: a captured pass has shape {tuple(target.shape)}")
        target.copy_(source)
    elif is_dataclass(target):
        for f in fields(target):
            _copy_into(getattr(source, f.name), getattr(target, f.name), f"{where}.{f.name}")
    elif isinstance(target, Mapping):
        if source.keys() != target.keys():
            raise MetadataError(f"{where}: a captured pass has {list(target)}, got {list(source)}")
        for key in target:
            _copy_into(source[key], target[key], f"{where}[{key}]")
    elif isinstance(target, tuple):
        for i, (one, other) in enumerate(zip(source, target, strict=True)):
            _copy_into(one, other, f"{where}[{i}]")
    elif source != target:
        raise MetadataError(f"{where}: a captured pass has {target}, got {source}")


def _copy_table(group_id: str, given: GroupTable, arena: GroupTable, allowed_rows: set[int]) -> None:
    rows, columns = given.pages_BC.shape
    if rows not in allowed_rows:
        raise MetadataError(f"{group_id}: {rows} table rows for a pass of {sorted(allowed_rows)} requests")
    if columns > arena.pages_BC.shape[1]:
        raise MetadataError(
            f"{group_id}: width mismatch, {columns} table columns, the graph state has {arena.pages_BC.shape[1]}"
        )
    arena.pages_BC[:rows, :columns].copy_(given.pages_BC)
    if arena.base_B is None:
        return
    if given.base_B is None or given.base_B.shape[0] < rows:
        got = 0 if given.base_B is None else given.base_B.shape[0]
        raise MetadataError(f"{group_id}: {got} base offsets for {rows} table rows")
    arena.base_B[:rows].copy_(given.base_B[:rows])


def _layout(inputs: ForwardInputs, key: GraphKey, seq_lens: tuple[int, ...]) -> RoundLayout:
    """The live requests of a pass of ``key``."""
    live = ForwardInputs(
        mode=inputs.mode,
        rows=inputs.rows,
        seq_lens=seq_lens,
        tables=inputs.tables,
        num_tokens=len(inputs.rows) * key.tokens_per_request,
    )
    return layout_of(live)
