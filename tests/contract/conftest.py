"""A small attention backend and inputs for it, as fixtures: what the backend rows share."""

from types import SimpleNamespace

import pytest
import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.passes import PassConfig
from backends.deepseek_v4.plan_types import PlanSpec
from backends.deepseek_v4.pool import CachePool
from specdec.api import GroupTable
from specdec.cache.spec import CacheGroupSpec
from specdec.layout import ForwardMode

CPU = torch.device("cpu")
SWA = "v4.swa_kv"
HEADS, DIM, TOPK = 2, 64, 4


def make_backend(ratios=(0, 4, 128), *, max_context=512, pages=40) -> DeepseekV4AttentionBackend:
    layout = CacheLayout(
        compress_ratios=ratios,
        sliding_window=16,
        head_dim=DIM,
        rope_dim=16,
        index_head_dim=128,
        cache_dtype="fp32",
        indexer_dtype="plain",
    )
    specs = layout.group_specs()
    spec = PlanSpec(
        groups={s.group_id: s for s in specs},
        kinds=layout.compressing_kinds,
        window_tokens=16,
        num_heads=HEADS,
        index_topk=TOPK,
        max_context=max_context,
    )
    pool = CachePool(layout, {s.group_id: pages for s in specs}, device=CPU, poison=True)
    return DeepseekV4AttentionBackend(spec, pool, PassConfig(max_context=max_context))


def tables_for(specs: tuple[CacheGroupSpec, ...], seq_lens, *, bases=None) -> dict[str, GroupTable]:
    """Pages 1, 2, ... of every group, request after request; ``bases`` replaces the base offsets."""
    tables = {}
    for spec in specs:
        columns = max((spec.pages_for(n) for n in seq_lens), default=0)
        pages = torch.arange(len(seq_lens) * columns, dtype=torch.int32).view(len(seq_lens), columns) + 1
        base_B = None
        if spec.is_sliding:
            base_B = torch.tensor((bases or {}).get(spec.group_id, [0] * len(seq_lens)), dtype=torch.int32)
        tables[spec.group_id] = GroupTable(pages_BC=pages, base_B=base_B)
    return tables


def decode_inputs(seq_lens, *, num_tokens=None, specs=None, tables=None) -> ForwardInputs:
    specs = make_backend().pool.layout.group_specs() if specs is None else specs
    return ForwardInputs(
        mode=ForwardMode.DECODE if seq_lens else ForwardMode.IDLE,
        rows=tuple(range(len(seq_lens))),
        seq_lens=tuple(seq_lens),
        tables=tables_for(specs, seq_lens) if tables is None else tables,
        num_tokens=num_tokens,
    )


def mixed_inputs(seq_lens, **fields) -> ForwardInputs:
    return ForwardInputs(
        mode=ForwardMode.MIXED, rows=tuple(range(len(seq_lens))), seq_lens=tuple(seq_lens), tables={}, **fields
    )


def swa_inputs(seq_lens, pages, bases, *, num_tokens=None) -> ForwardInputs:
    table = GroupTable(pages_BC=torch.tensor(pages, dtype=torch.int32), base_B=torch.tensor(bases, dtype=torch.int32))
    return decode_inputs(seq_lens, num_tokens=num_tokens, tables={SWA: table})


def filled(backend: DeepseekV4AttentionBackend) -> DeepseekV4AttentionBackend:
    """The backend with random rows in every cache."""
    pool = backend.pool
    for layer, kind in enumerate(pool.kinds):
        buffers = [(pool.swa(layer), pool.swa_rows)]
        if kind.compresses:
            buffers.append((pool.compressed(layer), pool.compressed_rows(layer)))
        for buffer, _ in buffers:
            buffer[1:].normal_()
    return backend


@pytest.fixture
def small() -> SimpleNamespace:
    """Builders of small backends and of the inputs of their passes."""
    return SimpleNamespace(
        backend=make_backend,
        filled=filled,
        tables=tables_for,
        decode=decode_inputs,
        mixed=mixed_inputs,
        window=swa_inputs,
        heads=HEADS,
        dim=DIM,
        topk=TOPK,
        swa=SWA,
    )
