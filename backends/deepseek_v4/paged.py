"""The attention step of a paged pass: writes a layer's caches, then attends what the plan names.

Writes come before reads within a layer, and a query sees positions up to its own only; that is all that makes
rejected tokens free (their rows are rewritten by the next pass before anything can see them). Knows no
scheduler and reads nothing back from the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, AttentionKind, state_group
from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.indexer import Indexer, select_topk
from backends.deepseek_v4.plan_types import Boundaries, ForwardPlan, Reach
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rope, Rotary
from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.segments import AttentionInput, attend_segments


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRopes:
    """Angles of a pass, made once.

    window    of every token, for window-only layers
    compress  of every token, for compressing layers
    entries   of the block starts of each kind's boundary tokens
    """

    window: Rope
    compress: Rope | None
    entries: Mapping[AttentionKind, Rope]

    def of(self, kind: AttentionKind) -> Rope:
        return self.compress if kind.compresses else self.window


def pass_ropes(plan: ForwardPlan, window: Rotary, compress: Rotary | None) -> PassRopes:
    """Angles of the plan's tokens and compressed rows; ``compress`` is None for a stack without compression."""
    if compress is None:
        return PassRopes(window=window(plan.positions_T), compress=None, entries={})
    entries = {}
    for kind, boundaries in plan.boundaries.items():
        starts_X = boundaries.positions_X - boundaries.positions_X % kind.ratio
        entries[kind] = compress(starts_X)
    return PassRopes(window=window(plan.positions_T), compress=compress(plan.positions_T), entries=entries)


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedPass:
    """One pass over one pool: what every layer's attention needs beside its weights and inputs."""

    plan: ForwardPlan
    pool: CachePool
    ropes: PassRopes

    def attention(self, layer: int, attention: Attention, x_TD: torch.Tensor) -> torch.Tensor:
        """Output [T, D] of a layer's attention over normalised inputs; writes the layer's caches in place.

        ``layer`` counts within the pool.
        """
        kind = self.pool.kind(layer)
        rope = self.ropes.of(kind)
        q_THD, keys_TD, latent_TL = attention.project(x_TD, rope)
        self.pool.swa_rows.write(self.pool.swa(layer), self.plan.write_slots[SWA_GROUP], keys_TD)
        selections: tuple[torch.Tensor | None, ...] = ()
        if kind.compresses:
            self._compress(layer, kind, attention.compressor, x_TD)
        if kind is AttentionKind.CSA:
            self._compress_index(layer, attention.indexer, x_TD)
            selections = self._select(layer, attention.indexer, x_TD, latent_TL)
        step = AttentionInput(
            plan=self.plan,
            layer=layer,
            q_THD=q_THD,
            sinks_H=attention.attn_sink,
            scale=attention.scale,
            selections=selections,
        )
        return attention.output(attend_segments(self.pool, step, self.plan.segments), rope)

    def _compress(self, layer: int, kind: AttentionKind, compressor: Compressor, x_TD: torch.Tensor) -> None:
        """Write the tokens' state rows and the compressed rows that they close."""
        plan, pool = self.plan, self.pool
        states_TD = compressor.state_rows(x_TD, plan.positions_T)
        state_rows, states = pool.state_rows(layer), pool.state(layer)
        state_rows.write(states, plan.write_slots[state_group(kind)], states_TD)
        boundaries = plan.boundaries.get(kind)
        if boundaries is not None:
            windows = (boundaries.window_slots_XW, boundaries.window_valid_XW)
            rows_XD = self._pool_rows(kind, compressor, state_rows, states, windows)
            pool.compressed_rows(layer).write(pool.compressed(layer), boundaries.write_slots_X, rows_XD)

    def _compress_index(self, layer: int, indexer: Indexer, x_TD: torch.Tensor) -> None:
        """Write the indexer's state rows and the keys that the tokens close."""
        plan, pool = self.plan, self.pool
        states_TD = indexer.compressor.state_rows(x_TD, plan.positions_T)
        state_rows, states = pool.index_state_rows(layer), pool.index_state(layer)
        state_rows.write(states, plan.write_slots[INDEX_STATE_GROUP], states_TD)
        boundaries = plan.boundaries.get(AttentionKind.CSA)
        if boundaries is not None:
            windows = _index_windows(boundaries)
            rows_XD = self._pool_rows(AttentionKind.CSA, indexer.compressor, state_rows, states, windows)
            pool.index_rows(layer).write(pool.index_keys(layer), boundaries.write_slots_X, rows_XD)

    def _pool_rows(
        self,
        kind: AttentionKind,
        compressor: Compressor,
        state_rows: RowFormat,
        states: torch.Tensor,
        windows: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Compressed rows [X, d] of windows given as (slots, validity) [X, W]."""
        slots_XW, valid_XW = windows
        return compressor.pool(state_rows.take(states, slots_XW), valid_XW, self.ropes.entries[kind])

    def _select(
        self, layer: int, indexer: Indexer, x_TD: torch.Tensor, latent_TL: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Per segment the selected rows [G, M, k] (ascending, left-packed, then -1), or None if all are seen."""
        views = [segment.compressed.get(AttentionKind.CSA) for segment in self.plan.segments]
        if all(view is None or view.reach is Reach.ALL for view in views):
            return (None,) * len(views)
        q_TJD = self.pool.index_rows(layer).prepare_query(indexer.query(latent_TL, self.ropes.compress))
        weights_TJ = indexer.weights(x_TD)
        selections = []
        for segment, view in zip(self.plan.segments, views, strict=True):
            if view is None or view.reach is Reach.ALL:
                selections.append(None)
                continue
            shape = (segment.num_groups, segment.width)
            keys_GCD = self.pool.index_rows(layer).take(self.pool.index_keys(layer), view.slots_GC)
            scores_GMC = indexer.scores(
                q_TJD[segment.first : segment.last].unflatten(0, shape),
                weights_TJ[segment.first : segment.last].unflatten(0, shape),
                keys_GCD,
            )
            selections.append(select_topk(scores_GMC, view.select_k, view.visible_GMC))
        return tuple(selections)


def _index_windows(boundaries: Boundaries) -> tuple[torch.Tensor, torch.Tensor]:
    assert boundaries.index_slots_XW is not None and boundaries.index_valid_XW is not None, "CSA has an indexer"
    return boundaries.index_slots_XW, boundaries.index_valid_XW
