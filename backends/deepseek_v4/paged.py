"""The attention step of a paged pass: writes a layer's caches, then attends what the plan names.

Writes come before reads within a layer, and a query sees positions up to its own only; that is all that makes
rejected tokens free (their rows are rewritten by the next pass before anything can see them). Knows no
scheduler and reads nothing back from the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, AttentionKind, state_group
from backends.deepseek_v4.indexer import Indexer, select_topk
from backends.deepseek_v4.plan_types import Boundaries, ForwardPlan, PlanSpec
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rope, Rotary
from backends.deepseek_v4.rows.missing import writable_slots
from backends.deepseek_v4.segments import AttentionInput, attend_segments


class Pooling(Protocol):
    """What closes windows of state rows; see ``Compressor.pool``."""

    def pool(self, rows: torch.Tensor, valid: torch.Tensor, rope: Rope) -> torch.Tensor: ...


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
    """One pass over one pool: what every layer's attention needs beside its weights and inputs.

    plan         the pass
    pool         its caches
    ropes        its angles
    write_slots  the plan's write slots by group, where unwanted rows have a place to land
    selects      whether any segment sees more compressed rows than a CSA query attends
    """

    plan: ForwardPlan
    pool: CachePool
    ropes: PassRopes
    write_slots: Mapping[str, torch.Tensor]
    selects: bool

    @classmethod
    def of(cls, plan: ForwardPlan, pool: CachePool, ropes: PassRopes, spec: PlanSpec) -> "PagedPass":
        """The pass of a plan."""
        write_slots = {g: writable_slots(slots_T, spec.rows_per_page(g)) for g, slots_T in plan.write_slots.items()}
        selects = any(segment.selects for segment in plan.segments)
        return cls(plan=plan, pool=pool, ropes=ropes, write_slots=write_slots, selects=selects)

    def attention(self, layer: int, attention: Attention, x_TD: torch.Tensor) -> torch.Tensor:
        """Output [T, D] of a layer's attention over normalised inputs; writes the layer's caches in place.

        ``layer`` counts within the pool.
        """
        rope, positions_T = self.ropes.of(self.pool.kind(layer)), self.plan.positions_T
        q_THD, keys_TD, latent_TL = attention.project(x_TD, rope)
        self.store_keys(layer, keys_TD)
        if attention.compressor is not None:
            self.store_states(layer, attention.compressor, attention.compressor.state_rows(x_TD, positions_T))
        selections: tuple[torch.Tensor | None, ...] = ()
        if attention.indexer is not None:
            indexer = attention.indexer
            self.store_index_states(layer, indexer.compressor, indexer.compressor.state_rows(x_TD, positions_T))
            if self.selects:
                q_TJD, weights_TJ = indexer.query(latent_TL, rope), indexer.weights(x_TD)
                selections = self.select(layer, indexer, q_TJD, weights_TJ)
        o_THD = self.attend(layer, q_THD, attention.attn_sink.float(), selections, scale=attention.scale)
        return attention.output(o_THD, rope)

    def store_keys(self, layer: int, keys_TD: torch.Tensor) -> None:
        """Write the tokens' rotated keys."""
        self.pool.swa_rows.put(self.pool.swa(layer), self.write_slots[SWA_GROUP], keys_TD)

    def store_states(self, layer: int, pooling: Pooling, states_TD: torch.Tensor) -> None:
        """Write the tokens' state rows and the compressed rows that they close."""
        plan, pool = self.plan, self.pool
        kind, rows, states = pool.kind(layer), pool.state_rows(layer), pool.state(layer)
        rows.put(states, self.write_slots[state_group(kind)], states_TD)
        boundaries = plan.boundaries.get(kind)
        if boundaries is not None:
            windows_XWD = rows.take(states, boundaries.window_slots_XW)
            closed_XD = pooling.pool(windows_XWD, boundaries.window_valid_XW, self.ropes.entries[kind])
            pool.compressed_rows(layer).write(pool.compressed(layer), boundaries.write_slots_X, closed_XD)

    def store_index_states(self, layer: int, pooling: Pooling, states_TD: torch.Tensor) -> None:
        """Write the tokens' rows of indexer state and the keys that they close."""
        plan, pool = self.plan, self.pool
        rows, states = pool.index_state_rows(layer), pool.index_state(layer)
        rows.put(states, self.write_slots[INDEX_STATE_GROUP], states_TD)
        boundaries = plan.boundaries.get(AttentionKind.CSA)
        if boundaries is not None:
            slots_XW, valid_XW = _index_windows(boundaries)
            entries = self.ropes.entries[AttentionKind.CSA]
            closed_XD = pooling.pool(rows.take(states, slots_XW), valid_XW, entries)
            pool.index_rows(layer).write(pool.index_keys(layer), boundaries.write_slots_X, closed_XD)

    def select(
        self, layer: int, indexer: Indexer, q_TJD: torch.Tensor, weights_TJ: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Per segment the selected rows [G, M, k] (ascending, left-packed, then -1), or None if all are seen.

        ``q_TJD`` are rotated queries of the indexer's J heads, ``weights_TJ`` float32 their weights.
        """
        rows, keys = self.pool.index_rows(layer), self.pool.index_keys(layer)
        q_TJD = rows.prepare_query(q_TJD)
        selections = []
        for segment in self.plan.segments:
            if not segment.selects:
                selections.append(None)
                continue
            view = segment.compressed[AttentionKind.CSA]
            shape, tokens = (segment.num_groups, segment.width), slice(segment.first, segment.last)
            scores_GMC = indexer.scores(
                q_TJD[tokens].unflatten(0, shape),
                weights_TJ[tokens].unflatten(0, shape),
                rows.take(keys, view.slots_GC),
            )
            selections.append(select_topk(scores_GMC, view.select_k, view.visible_GMC))
        return tuple(selections)

    def attend(
        self,
        layer: int,
        q_THD: torch.Tensor,
        sinks_H: torch.Tensor,
        selections: tuple[torch.Tensor | None, ...],
        *,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Attention results [T, H, d] of all segments from caches that are already written."""
        step = AttentionInput(
            plan=self.plan, layer=layer, q_THD=q_THD, sinks_H=sinks_H, scale=scale, selections=selections
        )
        return attend_segments(self.pool, step, self.plan.segments)


def _index_windows(boundaries: Boundaries) -> tuple[torch.Tensor, torch.Tensor]:
    assert boundaries.index_slots_XW is not None and boundaries.index_valid_XW is not None, "CSA has an indexer"
    return boundaries.index_slots_XW, boundaries.index_valid_XW
