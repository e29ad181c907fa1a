"""A target in the middle of long texts: caches filled with random rows, and packed passes over them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.fused.weights import WeightFormats
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.passes import PassConfig, target_layout
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.target import DeepseekV4Target
from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from backends.nextn.model import NextNModel
from specdec.api import PackedPass, Tables
from specdec.cache.allocator import CacheManager
from specdec.cache.tables import BlockTables
from specdec.engine_config import EngineConfig, plan_cache

# Rows that are made and stored at once.
FILL_ROWS = 1 << 16
# Positions behind the context that passes may reach.
ROOM = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """``batch`` requests with ``context`` committed positions each.

    target  with filled caches
    draft   the NextN layer under the same pages, or None
    blocks  where ``tables``, the block tables of all requests, come from
    """

    target: DeepseekV4Target
    draft: NextNBackend | None
    blocks: BlockTables
    tables: Tables
    batch: int
    context: int

    def packed(self, width: int) -> PackedPass:
        """``width`` tokens of every request at the end of its context."""
        device, num_tokens = self.target.device, self.batch * width
        generator = torch.Generator().manual_seed(width)
        tokens_T = torch.randint(2, self.target.vocab_size, (num_tokens,), generator=generator)
        offsets_T = torch.arange(num_tokens) % width
        return PackedPass(
            tokens_T=tokens_T.to(device),
            positions_T=(self.context + offsets_T).int().to(device),
            reqs_T=(torch.arange(num_tokens) // width).int().to(device),
            tables=self.tables,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldShape:
    """What a world is made of; ``num_draft_tokens`` is the most that a round drafts."""

    batch: int
    context: int
    cache_dtype: str = "bf16"
    indexer_dtype: str = "plain"
    num_draft_tokens: int = 4
    kernels: Kernels = Kernels.TRITON
    formats: WeightFormats = WeightFormats()


def make_world(model: DeepseekV4Model, nextn: NextNModel | None, shape: WorldShape) -> World:
    """Caches, pages and tables of a shape; the same model serves many worlds."""
    max_context = shape.context + ROOM
    config = EngineConfig(max_batch=shape.batch, max_context=max_context)
    layout = target_layout(model.config, cache_dtype=shape.cache_dtype, indexer_dtype=shape.indexer_dtype)
    specs = layout.slice_layers(0, model.config.num_hidden_layers).group_specs()
    draft_groups = [layout.group_specs()[0].group_id] if nextn is not None else []
    plan = plan_cache(
        specs,
        config,
        max_context=max_context,
        num_draft_tokens=shape.num_draft_tokens,
        draft_groups=draft_groups,
    )
    target = DeepseekV4Target.build(
        model,
        plan.num_pages,
        PassConfig(max_context=max_context, kernels=shape.kernels),
        cache_dtype=shape.cache_dtype,
        indexer_dtype=shape.indexer_dtype,
        formats=shape.formats,
    )
    fill(target.pool)
    draft = None
    if nextn is not None:
        draft = NextNBackend.build(nextn, target, NextNBackendConfig(max_batch=shape.batch))
        fill(draft.pool)
    cache = CacheManager(plan.specs, plan.num_pages, max_rows=shape.batch, draft_groups=plan.draft_groups)
    for row in range(shape.batch):
        cache.reserve_decode(
            row, shape.context, width=shape.num_draft_tokens + 1, num_draft_tokens=shape.num_draft_tokens
        )
    tables = BlockTables(plan.specs, plan.columns, max_rows=shape.batch, device=target.device)
    tables.write(cache.take_changes())
    return World(
        target=target,
        draft=draft,
        blocks=tables,
        tables=tables.view(range(shape.batch)),
        batch=shape.batch,
        context=shape.context,
    )


def fill(pool: CachePool) -> None:
    """Random rows in every cache."""
    for layer in range(len(pool.kinds)):
        fill_rows(pool.swa_rows, pool.swa(layer))
        if not pool.kind(layer).compresses:
            continue
        fill_rows(pool.compressed_rows(layer), pool.compressed(layer))
        pool.state(layer).normal_()
        if pool.kind(layer) is AttentionKind.CSA:
            fill_rows(pool.index_rows(layer), pool.index_keys(layer))
            pool.index_state(layer).normal_()


def fill_rows(rows: RowFormat, buffer: torch.Tensor) -> None:
    """Random rows in one buffer, through its own writer."""
    num_rows = buffer.shape[0] * rows.rows_per_page
    for first in range(0, num_rows, FILL_ROWS):
        slots_X = torch.arange(first, min(first + FILL_ROWS, num_rows), device=buffer.device)
        rows.put(buffer, slots_X, torch.randn(len(slots_X), rows.width, device=buffer.device))


def floor_bytes(world: World, width: int) -> dict[str, float]:
    """Bytes that a pass of ``width`` tokens per request must read, by part.

    Routed experts count as often as distinct ones are expected under uniform routing.
    """
    target, num_tokens = world.target, world.batch * width
    config, pool = target.model.config, target.pool
    share = 1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** num_tokens
    rows = {"window": world.batch * config.sliding_window * pool.swa_rows.row_bytes * len(pool.kinds)}
    for layer, kind in enumerate(pool.kinds):
        if not kind.compresses:
            continue
        visible = world.context // kind.ratio
        seen = min(visible, config.index_topk) if kind is AttentionKind.CSA else visible
        row_bytes = seen * pool.compressed_rows(layer).row_bytes
        if kind is AttentionKind.CSA and visible > config.index_topk:
            row_bytes += visible * pool.index_rows(layer).row_bytes
        rows[f"layer {layer}"] = world.batch * row_bytes
    return {
        "layers": sum(weights.num_bytes(share) for weights in target.fused.layers),
        "head": target.fused.head.nbytes,
        "caches": sum(rows.values()),
    }


def total(parts: Mapping[str, float]) -> float:
    """Bytes of all parts together."""
    return sum(parts.values())
