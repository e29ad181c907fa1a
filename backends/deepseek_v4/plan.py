"""plan_forward: from a layout and its block tables to a ForwardPlan; knows no weights and no buffers.

Pure and host-first: host integers decide every shape, the block tables decide the slots, and nothing is read
back from the device. Letters: see ``plan_types``.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    AttentionKind,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.ops.range_slots import entry_slots, history_slots, range_slots
from backends.deepseek_v4.plan_types import (
    EAGER,
    PAD_POSITION,
    Boundaries,
    CompressedView,
    ForwardPlan,
    PlanShape,
    PlanSpec,
    Reach,
    Segment,
)
from backends.deepseek_v4.spans import Span, plan_spans
from specdec.api import GroupTable, Tables
from specdec.cache.spec import PAD_SLOT, ceil_div
from specdec.errors import MetadataError
from specdec.layout import ForwardMode, RoundLayout

HIDDEN = float("-inf")


def plan_forward(
    layout: RoundLayout, tables: Tables, spec: PlanSpec, *, device: torch.device, shape: PlanShape = EAGER
) -> ForwardPlan:
    """All index tensors of one pass on ``device``.

    ``tables`` holds one row per request (per padded request under ``shape.num_reqs``); groups that ``spec`` does
    not know are ignored. Raises MetadataError for a missing group, a wrong number of table rows, or padding that
    does not fit.
    """
    num_reqs = shape.num_reqs or layout.num_reqs
    check_tables(tables, spec, num_reqs)
    spans = plan_spans(layout, shape)
    num_tokens = sum(span.num_groups * span.width for span in spans)
    padding = num_tokens - layout.num_tokens
    raw_T = _tensor(layout.positions + (PAD_POSITION,) * padding, device)
    is_padded = padding > 0 or shape.num_reqs > 0
    parts = [_plan_span(span, tables, spec, shape, raw_T) for span in spans]
    return ForwardPlan(
        mode=ForwardMode.DECODE if shape.num_reqs else layout.mode,
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        num_prefill_reqs=layout.num_prefill_reqs,
        num_prefill_tokens=layout.num_prefill_tokens,
        positions_T=raw_T.clamp(min=0) if is_padded else raw_T,
        valid_T=raw_T >= 0 if is_padded else None,
        write_slots=_join([slots for slots, _ in parts]),
        boundaries=_boundaries(layout, tables, spec, shape, raw_T),
        segments=tuple(segment for _, segments in parts for segment in segments),
    )


def check_tables(tables: Tables, spec: PlanSpec, num_reqs: int) -> None:
    """Raise MetadataError unless every group of ``spec`` has a table of ``num_reqs`` rows and the right base."""
    for group_id, group in spec.groups.items():
        if group_id not in tables:
            raise MetadataError(f"missing paged-cache block table of group {group_id}, got {sorted(tables)}")
        table = tables[group_id]
        if table.pages_BC.shape[0] != num_reqs:
            raise MetadataError(
                f"block table of {group_id} has {table.pages_BC.shape[0]} rows, the pass has {num_reqs} requests"
            )
        if group.is_sliding != (table.base_B is not None):
            need = "needs base offsets" if group.is_sliding else "takes no base offset"
            raise MetadataError(f"group {group_id} {need}")
        if table.base_B is not None and table.base_B.shape[0] != num_reqs:
            raise MetadataError(
                f"base offsets of {group_id} have {table.base_B.shape[0]} rows, the pass has {num_reqs} requests"
            )


def _plan_span(
    span: Span, tables: Tables, spec: PlanSpec, shape: PlanShape, raw_T: torch.Tensor
) -> tuple[dict[str, torch.Tensor], list[Segment]]:
    """Write slots of a span by group, and its segments."""
    device = raw_T.device
    starts_G = _tensor(span.starts, device)
    views, reqs_G = _rows_of(tables, spec, span.reqs, device)
    reach_back = spec.window_tokens - 1
    window_GK = _range(views, reqs_G, starts_G, spec, SWA_GROUP, range(-reach_back, span.width))
    slots = {SWA_GROUP: window_GK[:, reach_back:].flatten()}
    for group_id in _state_groups(spec):
        slots[group_id] = _range(views, reqs_G, starts_G, spec, group_id, range(span.width)).flatten()
    rows = {kind: _history(views, reqs_G, span, spec, shape, kind) for kind in spec.kinds}
    block = spec.query_block if span.is_prefill else span.width
    segments = [
        _segment(span, range(o, min(o + block, span.width)), window_GK, rows, spec, raw_T)
        for o in range(0, span.width, block)
    ]
    return slots, segments


def _rows_of(
    tables: Tables, spec: PlanSpec, reqs: range | tuple[int, ...], device: torch.device
) -> tuple[dict[str, GroupTable], torch.Tensor | None]:
    """The tables of a span and, unless group g simply is row g of them, the row of each group."""
    if not isinstance(reqs, range):
        return {g: tables[g] for g in spec.groups}, _tensor(reqs, device)
    views = {}
    for group_id in spec.groups:
        table = tables[group_id]
        if len(reqs) != table.pages_BC.shape[0]:
            table = slice_table(table, reqs)
        views[group_id] = table
    return views, None


def slice_table(table: GroupTable, reqs: range) -> GroupTable:
    """The rows ``reqs`` of a table, base offsets included (views)."""
    base_B = None if table.base_B is None else table.base_B[reqs.start : reqs.stop]
    return GroupTable(pages_BC=table.pages_BC[reqs.start : reqs.stop], base_B=base_B)


def _state_groups(spec: PlanSpec) -> list[str]:
    groups = [state_group(kind) for kind in spec.kinds]
    return groups + [INDEX_STATE_GROUP] if AttentionKind.CSA in spec.kinds else groups


def _range(
    views: Tables,
    reqs_G: torch.Tensor | None,
    starts_G: torch.Tensor,
    spec: PlanSpec,
    group_id: str,
    span: range,
) -> torch.Tensor:
    return range_slots(views[group_id], reqs_G, starts_G, span, spec.rows_per_page(group_id))


def _history(
    views: Tables, reqs_G: torch.Tensor | None, span: Span, spec: PlanSpec, shape: PlanShape, kind: AttentionKind
) -> torch.Tensor | None:
    """Slots [G, C] of the compressed rows that any token of the span may see; None when there is none."""
    num_rows = (spec.max_context if shape.constant_widths else span.end_position) // kind.ratio
    if num_rows <= 0:
        return None
    group_id = compressed_group(kind)
    rows_per_page = spec.rows_per_page(group_id)
    slots_GC = history_slots(views[group_id], reqs_G, ceil_div(num_rows, rows_per_page), rows_per_page)
    return slots_GC[:, :num_rows].clamp(min=0)


def _segment(
    span: Span,
    queries: range,
    window_GK: torch.Tensor,
    rows: Mapping[AttentionKind, torch.Tensor | None],
    spec: PlanSpec,
    raw_T: torch.Tensor,
) -> Segment:
    """The segment of queries ``queries`` of every group (all of them, or one block of a prompt chunk)."""
    width = len(queries)
    first, num_tokens = span.first + queries.start, span.num_groups * width
    slots_GK = window_GK[:, queries.start : queries.stop + spec.window_tokens - 1]
    window_GMK = _window_mask(slots_GK, width, spec.window_tokens)
    positions_GM = raw_T[first : first + num_tokens].view(span.num_groups, width)
    is_block = width != span.width
    last_position = span.starts[0] + queries.stop
    compressed = {}
    for kind, slots_GC in rows.items():
        if slots_GC is not None and is_block:
            slots_GC = slots_GC[:, : last_position // kind.ratio]
        if slots_GC is not None and slots_GC.shape[1]:
            compressed[kind] = _view(kind, slots_GC, positions_GM, window_GMK, spec)
    segment = window_segment(slots_GK, first=first, width=width, is_prefill=span.is_prefill, spec=spec)
    return replace(segment, compressed=compressed)


def window_segment(slots_GK: torch.Tensor, *, first: int, width: int, is_prefill: bool, spec: PlanSpec) -> Segment:
    """A segment that sees only the sliding window: ``slots_GK`` [G, W - 1 + width], -1 where there is no row."""
    window_GMK = _window_mask(slots_GK, width, spec.window_tokens)
    return Segment(
        first=first,
        last=first + len(slots_GK) * width,
        num_groups=len(slots_GK),
        width=width,
        is_prefill=is_prefill,
        window_slots_GK=slots_GK.clamp(min=0),
        window_bias_GQK=_bias(window_GMK, spec.num_heads),
        compressed={},
    )


def _window_mask(slots_GK: torch.Tensor, width: int, window: int) -> torch.Tensor:
    """[G, M, K] (or [G, 1, K] for one query) whether query m meets key k of the window range."""
    window_GMK = (slots_GK >= 0).unsqueeze(1)
    return window_GMK if width == 1 else window_GMK & _band(width, window, slots_GK.device)


def _band(width: int, window: int, device: torch.device) -> torch.Tensor:
    """[M, W - 1 + M] whether query m meets key k of the window range: its own and the W - 1 positions before."""
    return torch.ones(width, width + window - 1, dtype=torch.bool, device=device).triu_().tril_(window - 1)


def _view(
    kind: AttentionKind,
    slots_GC: torch.Tensor,
    positions_GM: torch.Tensor,
    window_GMK: torch.Tensor,
    spec: PlanSpec,
) -> CompressedView:
    """The compressed rows of a kind for one segment."""
    num_rows, width = slots_GC.shape[1], positions_GM.shape[1]
    counts_GM = torch.div(positions_GM + 1, kind.ratio, rounding_mode="floor").clamp_(min=0)
    select_k, visible_GMC = 0, None
    if kind is not AttentionKind.CSA or num_rows <= spec.index_topk:
        reach, seen = Reach.ALL, _first(counts_GM, num_rows)
    elif width <= spec.gather_limit:
        reach, select_k, visible_GMC = Reach.GATHER, spec.index_topk, _first(counts_GM, num_rows)
        seen = _own_columns(_first(counts_GM, select_k))
    else:
        reach, select_k, visible_GMC = Reach.MASK, spec.index_topk, _first(counts_GM, num_rows)
        seen = None
    bias_GQK = None
    if seen is not None:
        bias_GQK = _bias(torch.cat([window_GMK.expand(-1, width, -1), seen], dim=2), spec.num_heads)
    return CompressedView(reach=reach, slots_GC=slots_GC, visible_GMC=visible_GMC, select_k=select_k, bias_GQK=bias_GQK)


def _first(counts_GM: torch.Tensor, num_columns: int) -> torch.Tensor:
    """[G, M, num_columns] whether a column is among the first ``counts_GM``."""
    return torch.arange(num_columns, device=counts_GM.device) < counts_GM.unsqueeze(-1)


def _own_columns(seen_GMk: torch.Tensor) -> torch.Tensor:
    """[G, M, M * k]: of the selected rows of all M queries, those that query m selected itself."""
    width = seen_GMk.shape[1]
    if width == 1:
        return seen_GMk
    own_MM1 = torch.eye(width, dtype=torch.bool, device=seen_GMk.device).unsqueeze(-1)
    return (seen_GMk.unsqueeze(2) & own_MM1).flatten(2)


def _bias(seen_GMK: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Additive mask [G, Q, K]; one row for all heads when a group has one query."""
    bias_GMK = torch.where(seen_GMK, 0.0, HIDDEN)
    num_groups, width, num_keys = bias_GMK.shape
    if width == 1:
        return bias_GMK
    return bias_GMK.unsqueeze(2).expand(-1, -1, num_heads, -1).reshape(num_groups, width * num_heads, num_keys)


def _boundaries(
    layout: RoundLayout, tables: Tables, spec: PlanSpec, shape: PlanShape, raw_T: torch.Tensor
) -> dict[AttentionKind, Boundaries]:
    """The boundary tokens of each kind; host-known unless every token is to be treated as one."""
    found = {}
    for kind in spec.kinds:
        if shape.all_boundaries:
            width = len(raw_T) // max(1, shape.num_reqs or layout.num_reqs)
            reqs_X = torch.arange(len(raw_T), device=raw_T.device) // width
            found[kind] = _boundary(kind, None, reqs_X, raw_T, tables, spec)
            continue
        tokens = [t for t, p in enumerate(layout.positions) if (p + 1) % kind.ratio == 0]
        if tokens:
            reqs_X = _tensor([layout.token_reqs[t] for t in tokens], raw_T.device)
            positions_X = _tensor([layout.positions[t] for t in tokens], raw_T.device)
            tokens_X = None if len(tokens) == len(raw_T) else _tensor(tokens, raw_T.device)
            found[kind] = _boundary(kind, tokens_X, reqs_X, positions_X, tables, spec)
    return found


def _boundary(
    kind: AttentionKind,
    tokens_X: torch.Tensor | None,
    reqs_X: torch.Tensor,
    positions_X: torch.Tensor,
    tables: Tables,
    spec: PlanSpec,
) -> Boundaries:
    """Windows and write slots of tokens of which some may close no compressed row."""
    window = range(1 - kind.state_window, 1)
    slots_XW = _range(tables, reqs_X, positions_X, spec, state_group(kind), window)
    index_XW = None
    if kind is AttentionKind.CSA:
        index_XW = _range(tables, reqs_X, positions_X, spec, INDEX_STATE_GROUP, window)
    closes_X = torch.remainder(positions_X + 1, kind.ratio) == 0
    closes_X.logical_and_(positions_X >= 0)
    entries_X = torch.div(positions_X, kind.ratio, rounding_mode="floor").masked_fill_(~closes_X, PAD_SLOT)
    group_id = compressed_group(kind)
    return Boundaries(
        tokens_X=tokens_X,
        positions_X=positions_X.clamp(min=0),
        window_slots_XW=slots_XW.clamp(min=0),
        window_valid_XW=slots_XW >= 0,
        index_slots_XW=None if index_XW is None else index_XW.clamp(min=0),
        index_valid_XW=None if index_XW is None else index_XW >= 0,
        write_slots_X=entry_slots(tables[group_id], reqs_X, entries_X, spec.rows_per_page(group_id)),
    )


def _join(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Slots of consecutive spans, concatenated by group."""
    if len(parts) == 1:
        return parts[0]
    return {group_id: torch.cat([part[group_id] for part in parts]) for group_id in parts[0]} if parts else {}


def _tensor(values: tuple[int, ...] | list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
