"""Whole lives of requests through the page tables: no key is lost and no write dropped, whatever the lengths.

Memory is an integer per slot: which row's which entry was written last. Every pass writes and reads through
block tables as a V4 target and its draft do, and fails when a write has no page or a read finds anything but
the entry that it asked for.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import SWA_GROUP, CacheLayout
from specdec.cache.allocator import CacheManager
from specdec.cache.sizing import PoolLimits, decode_horizon, guaranteed_pages, table_columns
from specdec.cache.spec import DUMMY_PAGE, CacheGroupSpec

DRAFT_GROUPS = frozenset({SWA_GROUP})
ENTRIES = 1 << 20
UNWRITTEN = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownTable:
    """Pages of one row and group as a pass sees them."""

    page_ids: np.ndarray
    base: int


@dataclass(slots=True)
class GroupMemory:
    """Slots of one buffer. ``spec.entry_stride_tokens`` raw tokens share an entry."""

    spec: CacheGroupSpec
    num_pages: int
    slots: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.slots = np.full(self.num_pages * self.spec.rows_per_page, UNWRITTEN, dtype=np.int64)

    def locate(self, table: ShownTable, entries: np.ndarray) -> np.ndarray:
        column = entries // self.spec.rows_per_page - table.base
        assert column.size == 0 or (column.min() >= 0 and column.max() < len(table.page_ids)), (
            f"{self.spec.group_id}: no page for entries {entries[[0, -1]]} (base {table.base})"
        )
        pages = table.page_ids[column]
        assert not np.any(pages == DUMMY_PAGE)
        return pages * self.spec.rows_per_page + entries % self.spec.rows_per_page

    def write(self, row: int, table: ShownTable, entries: np.ndarray) -> None:
        self.slots[self.locate(table, entries)] = row * ENTRIES + entries

    def read(self, row: int, table: ShownTable, entries: np.ndarray) -> None:
        found = self.slots[self.locate(table, entries)]
        assert np.array_equal(found, row * ENTRIES + entries), f"{self.spec.group_id}: row {row} lost {entries}"


class PagedModel:
    """Buffers of target and draft over the groups of a manager."""

    def __init__(self, cache: CacheManager) -> None:
        pages = {group_id: allocator.num_pages for group_id, allocator in cache.allocators.items()}
        self.target = {s.group_id: GroupMemory(s, pages[s.group_id]) for s in cache.specs}
        self.draft = {
            s.group_id: GroupMemory(s, pages[s.group_id]) for s in cache.specs if s.group_id in cache.draft_groups
        }
        self.cache = cache

    def show(self, row: int) -> dict[str, ShownTable]:
        """The row's tables now; a running pass keeps them while the manager goes on."""
        shown = {}
        for group_id, allocator in self.cache.allocators.items():
            pages = allocator.row(row)
            shown[group_id] = ShownTable(page_ids=np.array(pages.page_ids, dtype=np.int64), base=pages.base)
        return shown

    def target_pass(self, row: int, tables: dict[str, ShownTable], first: int, num_tokens: int) -> None:
        """Write all positions of the pass, then read what every query position attends."""
        for memory in self.target.values():
            self._run(memory, row, tables, first, num_tokens)

    def catch_up(self, row: int, tables: dict[str, ShownTable], first: int, num_tokens: int) -> None:
        """The draft's pass over the same positions."""
        for memory in self.draft.values():
            self._run(memory, row, tables, first, num_tokens)

    def draft_steps(self, row: int, tables: dict[str, ShownTable], first: int, num_draft_tokens: int) -> None:
        """The draft's own steps after the catch-up, one position each."""
        for step in range(num_draft_tokens - 1):
            self.catch_up(row, tables, first + step, 1)

    def _run(self, memory: GroupMemory, row: int, tables: dict[str, ShownTable], first: int, num_tokens: int) -> None:
        spec = memory.spec
        table = tables[spec.group_id]
        positions = np.arange(first, first + num_tokens)
        if spec.is_sliding:
            memory.write(row, table, positions)
            oldest = max(0, first - spec.sliding_window_tokens + 1)
            memory.read(row, table, np.arange(oldest, first + num_tokens))
            return
        stride = spec.entry_stride_tokens
        memory.write(row, table, positions[(positions + 1) % stride == 0] // stride)
        memory.read(row, table, np.arange((first + num_tokens) // stride))


@dataclass(slots=True)
class Life:
    """One request: what the device has done with it, and what the host knows of that."""

    row: int
    prompt: int
    length: int
    committed: int = 0
    known: int = 0
    in_flight: int = 0

    @property
    def in_prompt(self) -> bool:
        return self.committed < self.prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Limits of a simulated engine; ``overlap`` 1 schedules a pass before the previous result is known."""

    width: int
    num_draft_tokens: int
    overlap: int = 0
    live: int = 2
    chunk: int = 64
    max_context: int = 400
    window: int = 128
    longest_output: int = 80

    def build(self) -> CacheManager:
        specs = CacheLayout(compress_ratios=(0, 4, 128), sliding_window=self.window).group_specs()
        limits = PoolLimits(
            max_live=self.live,
            scheduled_tokens=self.chunk,
            total_tokens=self.live * self.max_context,
            max_context=self.max_context,
        )
        pages = {s.group_id: guaranteed_pages(s, limits, horizon=self.horizon(s)) for s in specs}
        return CacheManager(specs, pages, max_rows=self.live, draft_groups=DRAFT_GROUPS)

    def horizon(self, spec: CacheGroupSpec) -> int:
        return decode_horizon(
            width=self.width,
            num_draft_tokens=self.num_draft_tokens,
            overlap_depth=self.overlap,
            drafted=spec.group_id in DRAFT_GROUPS,
        )

    def columns(self, spec: CacheGroupSpec) -> int:
        longest_chunk = self.chunk + max(0, self.num_draft_tokens - 1)
        return table_columns(spec, max_context=self.max_context, horizon=max(self.horizon(spec), longest_chunk))


class Simulation:
    """Schedules passes over a stream of requests; prompt chunks share one token budget, all rows run each pass."""

    def __init__(self, setting: Setting, prompts: list[int], seed: int) -> None:
        self.setting = setting
        self.random = random.Random(seed)
        self.cache = setting.build()
        self.model = PagedModel(self.cache)
        self.waiting = list(prompts)
        self.lives: dict[int, Life] = {}
        self.columns = {spec.group_id: setting.columns(spec) for spec in self.cache.specs}

    def run(self) -> None:
        pending = []
        while self.waiting or self.lives:
            self._admit()
            dispatched = self._dispatch()
            for life, known in pending if self.setting.overlap else dispatched:
                if self.lives.get(life.row) is life:
                    self._result(life, known)
            pending = dispatched
            self.cache.check_integrity()
        assert self.cache.num_failed == 0
        for group_id, allocator in self.cache.allocators.items():
            assert allocator.num_used == 0, f"{group_id}: pages left after the last request"

    def _admit(self) -> None:
        for row in range(self.setting.live):
            if row not in self.lives and self.waiting:
                prompt = self.waiting.pop()
                # A finished request runs on until its result is read.
                longest = self.setting.max_context - 3 * self.setting.width
                length = self.random.randint(prompt, min(prompt + self.setting.longest_output, longest))
                self.lives[row] = Life(row, prompt, length)

    def _dispatch(self) -> list[tuple[Life, int]]:
        """Reserve for every row, then run every row; returns the committed length that each result will report."""
        budget = self.setting.chunk
        planned = []
        for life in sorted(self.lives.values(), key=lambda life: (not life.in_prompt, self.random.random())):
            drafted = self.random.randint(0, self.setting.num_draft_tokens)
            if life.in_prompt:
                tokens = min(budget, life.prompt - life.committed)
                budget -= tokens
                if tokens:
                    last = life.committed + tokens == life.prompt
                    extra = max(0, drafted - 1) if last else 0
                    self.cache.reserve_chunk(life.row, life.committed, tokens, extra=extra)
                    planned.append((life, tokens, drafted if last else 0))
                continue
            width = self.random.randint(1, self.setting.width)
            self.cache.reserve_decode(
                life.row, life.known, width=width, num_draft_tokens=drafted, in_flight_tokens=life.in_flight
            )
            planned.append((life, width, drafted))
        results = [(life, self._run(life, tokens, drafted)) for life, tokens, drafted in planned]
        for life, known in results:
            if not life.in_flight:
                self.cache.release_skipped(life.row, known)
        return results

    def _run(self, life: Life, tokens: int, drafted: int) -> int:
        tables = self.model.show(life.row)
        for group_id, table in tables.items():
            assert len(table.page_ids) <= self.columns[group_id], f"{group_id}: table too narrow"
        self.model.target_pass(life.row, tables, life.committed, tokens)
        self.model.catch_up(life.row, tables, life.committed, tokens)
        if life.in_prompt:
            life.committed += tokens
            # The end of a chunk is known without its result.
            life.known = life.committed
        else:
            life.committed += self.random.randint(1, tokens)
            life.in_flight = tokens if self.setting.overlap else 0
        self.model.draft_steps(life.row, tables, life.committed, drafted)
        return life.committed

    def _result(self, life: Life, known: int) -> None:
        life.known = max(life.known, known)
        if known >= life.length:
            self.cache.release(life.row)
            del self.lives[life.row]
        elif known >= life.prompt:
            self.cache.roll_back(life.row, known, in_flight_tokens=life.in_flight)


@given(
    setting=st.builds(
        Setting,
        width=st.integers(1, 8),
        num_draft_tokens=st.integers(0, 7),
        overlap=st.integers(0, 1),
        live=st.integers(1, 3),
        chunk=st.integers(1, 150),
        window=st.sampled_from([16, 64, 128]),
    ),
    prompts=st.lists(st.one_of(st.integers(1, 300), st.sampled_from([63, 64, 65, 127, 128, 129, 256])), max_size=4),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=40)
def test_no_key_is_lost_and_no_write_dropped_for_any_lengths(setting, prompts, seed):
    """Invariant 10: a reservation covers all writes of its pass, the draft's included."""
    Simulation(setting, prompts, seed).run()


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("width", [1, 4, 8])
def test_requests_of_equal_length_do_not_exhaust_the_guaranteed_pool(width, overlap):
    setting = Setting(width=width, num_draft_tokens=width - 1, overlap=overlap, live=6, chunk=64)
    Simulation(setting, [130] * 12, seed=width).run()
