"""The index tensors of a packed pass: reference against the plan, kernel against the reference, no device reads."""

import random
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import SWA_GROUP, AttentionKind, CacheLayout, compressed_group
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.pass_indices import pass_indices
from backends.deepseek_v4.ops.range_slots import history_slots
from backends.deepseek_v4.pass_values import IndexShape, PassIndices, SlotList
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import PlanSpec
from specdec.api import GroupTable, PackedPass
from specdec.cache.spec import CacheGroupSpec
from specdec.errors import MetadataError
from specdec.layout import RoundLayout

CPU = torch.device("cpu")
MAX_CONTEXT = 1500
BOUNDARIES = [0, 3, 4, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024]


def groups_of(ratios: tuple[int, ...], window: int) -> dict[str, CacheGroupSpec]:
    layout = CacheLayout(compress_ratios=ratios, sliding_window=window, cache_dtype="fp32", indexer_dtype="plain")
    return {spec.group_id: spec for spec in layout.group_specs()}


def shape_of(ratios: tuple[int, ...], window: int, max_context: int = MAX_CONTEXT) -> IndexShape:
    kinds = tuple(kind for kind in (AttentionKind.CSA, AttentionKind.HCA) if kind.ratio in ratios)
    return IndexShape(
        groups=groups_of(ratios, window), kinds=kinds, window_tokens=window, max_context=max_context, index_topk=8
    )


def tables_of(shape: IndexShape, reqs: list[tuple[int, int]], seed: int, holes: bool = False) -> dict[str, GroupTable]:
    """Strided tables of requests given as (first query position, length), on shuffled pages, compact windows."""
    rng = random.Random(seed)
    tables = {}
    for group_id, spec in shape.groups.items():
        lines, bases = [], []
        pages = iter(rng.sample(range(1, 4000), 3000))
        for first, length in reqs:
            base = max(0, first - spec.sliding_window_tokens + 1) // spec.tokens_per_page if spec.is_sliding else 0
            base = rng.randint(0, base)
            count = spec.pages_for(length) - base
            missing = holes and spec.is_sliding
            lines.append([-1 if missing and rng.random() < 0.3 else next(pages) for _ in range(count)])
            bases.append(base)
        columns = max(len(line) for line in lines) + rng.randint(0, 2)
        padded = torch.tensor([line + [-1] * (columns - len(line)) for line in lines], dtype=torch.int32)
        # As the persistent tables show them: a slice of longer lines, bases in a column of their own.
        wide = torch.full((len(reqs), columns + 7), 9, dtype=torch.int32)
        wide[:, 3 : 3 + columns] = padded
        wide[:, -1] = torch.tensor(bases, dtype=torch.int32)
        base_B = wide[:, -1] if spec.is_sliding else None
        tables[group_id] = GroupTable(pages_BC=wide[:, 3 : 3 + columns], base_B=base_B)
    return tables


def packed_of(layout: RoundLayout, tables: dict[str, GroupTable], padding: int = 0) -> PackedPass:
    positions = torch.tensor(layout.positions + (-1,) * padding, dtype=torch.int32)
    reqs = torch.tensor(layout.token_reqs + (0,) * padding, dtype=torch.int32)
    return PackedPass(
        tokens_T=torch.zeros(len(positions), dtype=torch.int64), positions_T=positions, reqs_T=reqs, tables=tables
    )


@st.composite
def layouts(draw: st.DrawFn) -> RoundLayout:
    """Prompt chunks, then decode rows of one token or several, begun anywhere, mostly around a boundary."""
    start = st.one_of(st.integers(0, 700), st.sampled_from(BOUNDARIES).flatmap(lambda p: st.integers(max(0, p - 4), p)))
    chunks = draw(st.lists(st.tuples(start, st.integers(1, 40)), max_size=2))
    width = draw(st.integers(1, 5))
    decodes = draw(st.lists(start, min_size=0 if chunks else 1, max_size=3))
    return RoundLayout(
        rows=tuple(range(len(chunks) + len(decodes))),
        start_positions=tuple(p for p, _ in chunks) + tuple(decodes),
        query_lens=tuple(n for _, n in chunks) + (width,) * len(decodes),
        num_prefill_reqs=len(chunks),
    )


RATIOS = st.sampled_from([(0,), (0, 4), (0, 128), (0, 4, 128)])


def check_window(got: SlotList, plan, window: int) -> None:
    """Each token's list is the plan's range of its segment, cut to the token's own band, without missing rows."""
    for segment in plan.segments:
        hidden_GMK = segment.window_bias_GQK[:, :: max(1, segment.window_bias_GQK.shape[1] // segment.width)]
        for i in range(segment.last - segment.first):
            g, m = divmod(i, segment.width)
            want = segment.window_slots_GK[g][hidden_GMK[g, m] == 0].tolist()
            line = got.slots_TK[segment.first + i].tolist()
            assert got.lens_T[segment.first + i] == len(want)
            assert line == want + [-1] * (len(line) - len(want))


@settings(deadline=None, max_examples=60)
@given(layouts(), RATIOS, st.sampled_from([1, 8, 20, 128]), st.integers(0, 99), st.integers(0, 3), st.booleans())
def test_reference_names_the_rows_that_the_plan_names(layout, ratios, window, seed, padding, holes):
    shape = shape_of(ratios, window)
    reqs = list(zip(layout.start_positions, layout.seq_lens, strict=True))
    tables = tables_of(shape, reqs, seed, holes)
    spec = PlanSpec(
        groups=shape.groups, kinds=shape.kinds, window_tokens=window, num_heads=1, index_topk=8, max_context=MAX_CONTEXT
    )
    plan = plan_forward(layout, tables, spec, device=CPU)
    got = pass_indices(packed_of(layout, tables, padding), shape, kernels=Kernels.REFERENCE)
    none = [-1] * padding
    assert set(got.write_slots) == set(plan.write_slots)
    for group_id, slots_T in plan.write_slots.items():
        assert got.write_slots[group_id].tolist() == slots_T.tolist() + none
    check_window(got.window, plan, window)
    assert got.window.lens_T[layout.num_tokens :].tolist() == [0] * padding
    for kind in shape.kinds:
        entries = [-1] * (layout.num_tokens + padding)
        found = plan.boundaries.get(kind)
        if found is not None:
            tokens = range(layout.num_tokens) if found.tokens_X is None else found.tokens_X.tolist()
            for token, slot in zip(tokens, found.write_slots_X.tolist(), strict=True):
                entries[token] = slot
        assert got.entry_slots[kind].tolist() == entries
        assert got.visible[kind].tolist() == [(p + 1) // kind.ratio for p in layout.positions] + [0] * padding
    if AttentionKind.HCA not in shape.kinds:
        assert got.hca is None
        return
    group_id = compressed_group(AttentionKind.HCA)
    rows_C = history_slots(tables[group_id], None, MAX_CONTEXT // 256 + 1, shape.groups[group_id].rows_per_page)
    for t, (req, position) in enumerate(zip(layout.token_reqs, layout.positions, strict=True)):
        want = rows_C[req, : (position + 1) // 128].tolist()
        assert got.hca.lens_T[t] == len(want)
        assert got.hca.slots_TK[t].tolist() == want + [-1] * (shape.hca_columns - len(want))


def flat(indices: PassIndices) -> dict[str, torch.Tensor]:
    """Every tensor of the value by name."""
    found = {}
    for field in fields(indices):
        value = getattr(indices, field.name)
        if isinstance(value, SlotList):
            found |= {f"{field.name}.slots": value.slots_TK, f"{field.name}.lens": value.lens_T}
        elif isinstance(value, torch.Tensor):
            found[field.name] = value
        elif value is not None:
            found |= {f"{field.name}.{key}": tensor for key, tensor in value.items()}
    return found


def to(packed: PackedPass, device: torch.device) -> PackedPass:
    def move(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)

    tables = {
        group_id: GroupTable(pages_BC=move(t.pages_BC), base_B=None if t.base_B is None else move(t.base_B))
        for group_id, t in packed.tables.items()
    }
    return PackedPass(
        tokens_T=move(packed.tokens_T), positions_T=move(packed.positions_T), reqs_T=move(packed.reqs_T), tables=tables
    )


def assert_same(got: PassIndices, want: PassIndices) -> None:
    got_tensors, want_tensors = flat(got), flat(want)
    assert set(got_tensors) == set(want_tensors)
    for name, tensor in want_tensors.items():
        assert got_tensors[name].dtype == torch.int32, name
        assert got_tensors[name].tolist() == tensor.tolist(), name


KERNEL_CASES = [
    ((0, 4, 128), 128, [(1279, 3), (0, 2), (126, 4)], 2),
    ((0, 4, 128), 20, [(511, 1)], 0),
    ((0, 4), 70, [(60, 9)], 1),
    ((0, 128), 1, [(254, 3), (5, 1)], 0),
    ((0,), 128, [(100, 2), (640, 2)], 3),
]


def case_of(ratios, window, chunks, padding, seed=0) -> tuple[PackedPass, IndexShape]:
    layout = RoundLayout(
        rows=tuple(range(len(chunks))),
        start_positions=tuple(p for p, _ in chunks),
        query_lens=tuple(n for _, n in chunks),
    )
    shape = shape_of(ratios, window)
    reqs = list(zip(layout.start_positions, layout.seq_lens, strict=True))
    return packed_of(layout, tables_of(shape, reqs, seed, holes=True), padding), shape


@pytest.mark.parametrize(("ratios", "window", "chunks", "padding"), KERNEL_CASES)
def test_kernel_equals_the_reference(nan_empty, ratios, window, chunks, padding):
    packed, shape = case_of(ratios, window, chunks, padding)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    want = pass_indices(packed, shape, kernels=Kernels.REFERENCE)
    assert_same(pass_indices(to(packed, device), shape, kernels=Kernels.TRITON), want)


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
def test_positions_may_be_strided_and_further_groups_are_ignored(kernels):
    packed, shape = case_of((0, 4, 128), 20, [(125, 4), (64, 1)], 1)
    want = pass_indices(packed, shape, kernels=Kernels.REFERENCE)
    strided = PackedPass(
        tokens_T=packed.tokens_T,
        positions_T=torch.stack([packed.positions_T] * 2, dim=1)[:, 0],
        reqs_T=torch.stack([packed.reqs_T] * 3, dim=1)[:, 1],
        tables=packed.tables,
    )
    strided = to(strided, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    assert_same(pass_indices(strided, shape, kernels=kernels), want)
    draft = pass_indices(strided, shape_of((0,), 20), kernels=kernels)
    assert list(draft.write_slots) == [SWA_GROUP] and draft.hca is None and not draft.visible
    assert draft.window.slots_TK.tolist() == want.window.slots_TK.tolist()


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
def test_list_of_hca_rows_ends_at_the_context_and_spans_blocks(nan_empty, kernels):
    """More columns than one program writes; a position beyond the context is cut off."""
    shape = shape_of((0, 128), 8, max_context=1100 * 128)
    group_id = compressed_group(AttentionKind.HCA)
    layout = RoundLayout(rows=(0, 1), start_positions=(150_000, 1090 * 128 - 1), query_lens=(1, 1))
    tables = tables_of(shape, [(p, 64) for p in (0, 0)], 0)
    pages_BC = torch.randperm(1200, dtype=torch.int32).view(2, 600)
    packed = packed_of(layout, {**tables, group_id: GroupTable(pages_BC=pages_BC)})
    packed = to(packed, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    got = pass_indices(packed, shape, kernels=kernels).hca
    rows = (pages_BC.unsqueeze(2) * 2 + torch.arange(2)).flatten(1)
    assert got.slots_TK.shape == (2, 1152) and got.lens_T.tolist() == [1152, 1090]
    assert got.slots_TK[0].tolist() == rows[0, :1152].tolist()
    assert got.slots_TK[1].tolist() == rows[1, :1090].tolist() + [-1] * 62


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
def test_pass_without_tokens_has_empty_lists(kernels):
    packed, shape = case_of((0, 4, 128), 20, [(0, 1)], 0)
    empty = PackedPass(
        tokens_T=packed.tokens_T[:0], positions_T=packed.positions_T[:0], reqs_T=packed.reqs_T[:0], tables=packed.tables
    )
    empty = to(empty, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    got = pass_indices(empty, shape, kernels=kernels)
    assert (
        got.window.slots_TK.shape == (0, 64) and got.hca.slots_TK.shape == (0, 64) and got.window.lens_T.shape == (0,)
    )


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
def test_table_without_columns_has_no_rows(kernels):
    packed, shape = case_of((0, 4, 128), 20, [(3, 1)], 0)
    tables = {
        group_id: GroupTable(pages_BC=torch.empty((1, 0), dtype=torch.int32), base_B=table.base_B)
        for group_id, table in packed.tables.items()
    }
    bare = PackedPass(tokens_T=packed.tokens_T, positions_T=packed.positions_T, reqs_T=packed.reqs_T, tables=tables)
    bare = to(bare, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    got = pass_indices(bare, shape, kernels=kernels)
    assert got.window.lens_T.tolist() == [0] and got.visible[AttentionKind.CSA].tolist() == [1]
    assert [slots_T.tolist() for slots_T in got.write_slots.values()] == [[-1]] * 4
    assert got.entry_slots[AttentionKind.CSA].tolist() == [-1]


def test_group_without_a_table_is_an_error():
    packed, _ = case_of((0,), 8, [(0, 1)], 0)
    with pytest.raises(MetadataError, match="v4.c4a.compressed_kv"):
        pass_indices(packed, shape_of((0, 4), 8), kernels=Kernels.REFERENCE)


def test_reference_reads_nothing_from_the_device():
    packed, shape = case_of((0, 4, 128), 20, [(125, 4), (64, 1)], 1)
    got = pass_indices(to(packed, torch.device("meta")), shape, kernels=Kernels.REFERENCE)
    assert got.window.slots_TK.shape == (6, 64) and got.hca.lens_T.shape == (6,)


@pytest.mark.gpu
def test_captured_kernel_follows_positions_tables_and_bases():
    packed, shape = case_of((0, 4, 128), 128, [(1279, 3), (0, 2), (126, 4)], 2)
    other, _ = case_of((0, 4, 128), 128, [(1276, 3), (1, 2), (254, 4)], 2, seed=1)
    device = torch.device("cuda")
    live = to(packed, device)
    pass_indices(live, shape, kernels=Kernels.TRITON)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = pass_indices(live, shape, kernels=Kernels.TRITON)
    for case in (packed, other):
        live.positions_T.copy_(case.positions_T)
        for group_id, table in case.tables.items():
            columns = min(table.pages_BC.shape[1], live.tables[group_id].pages_BC.shape[1])
            live.tables[group_id].pages_BC[:, :columns].copy_(table.pages_BC[:, :columns])
            if table.base_B is not None:
                live.tables[group_id].base_B.copy_(table.base_B)
        graph.replay()
        assert_same(got, pass_indices(to(live, torch.device("cpu")), shape, kernels=Kernels.REFERENCE))
