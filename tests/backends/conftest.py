"""A small random V4 model over shuffled pages, as a fixture: what the tests of paged passes share."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from backends.deepseek_v4.config import DeepseekV4Config, YarnScaling
from backends.deepseek_v4.dense import dense_forward
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model, cast_parameters
from backends.deepseek_v4.passes import PassConfig, target_layout
from backends.deepseek_v4.target import DeepseekV4Target
from backends.nextn.dense import dense_nextn
from backends.nextn.model import NextNModel
from specdec.api import Draft, DraftInput, GroupTable, TargetOutput
from specdec.cache.spec import CacheGroupSpec
from specdec.layout import RoundLayout

CPU = torch.device("cpu")

SMALL = DeepseekV4Config(
    vocab_size=97,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=16,
    q_lora_rank=24,
    o_groups=2,
    o_lora_rank=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    compress_ratios=(0, 4, 128, 4, 0),
    sliding_window=16,
    index_n_heads=4,
    index_head_dim=128,
    index_topk=8,
    num_hash_layers=1,
    swiglu_limit=10.0,
    hc_mult=2,
    hc_sinkhorn_iters=3,
    yarn=YarnScaling(factor=4.0, original_positions=64),
    max_position_embeddings=1024,
)


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Weights large enough that every part of the model matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        fan_in = parameter.shape[-1] if parameter.dim() > 1 else 1
        noise = torch.randn(parameter.shape, generator=generator) * (fan_in**-0.5 if parameter.dim() > 1 else 0.2)
        parameter.data = (noise + 1.0 if "norm" in name or name.endswith("_scale") else noise).to(parameter.dtype)
    for name, buffer in module.named_buffers():
        if name.endswith("tid2eid"):
            buffer.copy_(torch.randint(0, SMALL.n_routed_experts, buffer.shape, generator=generator))


def shuffled_tables(
    specs: Sequence[CacheGroupSpec],
    num_pages: dict[str, int],
    reqs: Sequence[tuple[int, int]],
    rows: Sequence[int],
    *,
    compact: bool,
) -> dict[str, GroupTable]:
    """Tables of requests given as (first query position, length): every row owns its own shuffled pages.

    ``compact`` drops the columns that have left a sliding group's window, as the allocator does.
    """
    tables = {}
    for spec in specs:
        lines, bases = [], []
        for (first, length), row in zip(reqs, rows, strict=True):
            capacity = (num_pages[spec.group_id] - 1) // 4
            order = list(range(1 + row * capacity, 1 + (row + 1) * capacity))
            random.Random(f"{spec.group_id}{row}").shuffle(order)
            needed = spec.pages_for(length)
            assert needed <= capacity, "the test world has too few pages"
            base = max(0, first - spec.sliding_window_tokens + 1) // spec.tokens_per_page if compact else 0
            base = base if spec.is_sliding else 0
            lines.append(order[base:needed])
            bases.append(base)
        columns = max((len(line) for line in lines), default=0)
        pages = [line + [-1] * (columns - len(line)) for line in lines]
        pages_BC = torch.tensor(pages, dtype=torch.int32).reshape(len(reqs), columns)
        base_B = torch.tensor(bases, dtype=torch.int32) if spec.is_sliding else None
        tables[spec.group_id] = GroupTable(pages_BC=pages_BC, base_B=base_B)
    return tables


class GreedyView:
    """Sampling view that takes the most likely token."""

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        return Draft(tokens_B=logits_BV.argmax(dim=1))


@dataclass
class PagedWorld:
    """A target over shuffled pages; rows 0..3 may be used."""

    target: DeepseekV4Target
    nextn: NextNModel
    num_pages: dict[str, int]
    device: torch.device = CPU
    compact: bool = True

    def tables(self, layout: RoundLayout, extra: int = 0) -> dict[str, GroupTable]:
        """Tables that cover the layout and ``extra`` further positions."""
        spans = [(p, n + extra) for p, n in zip(layout.start_positions, layout.seq_lens, strict=True)]
        specs = self.target.cache_groups
        tables = shuffled_tables(specs, self.num_pages, spans, layout.rows, compact=self.compact)
        return {
            group_id: GroupTable(
                pages_BC=table.pages_BC.to(self.device),
                base_B=None if table.base_B is None else table.base_B.to(self.device),
            )
            for group_id, table in tables.items()
        }

    def layout(self, chunks: Sequence[tuple[int, int, Sequence[int]]], *, num_prefill_reqs: int = 0) -> RoundLayout:
        """Layout of a pass over (row, start position, tokens) with the logits of every token."""
        return layout_of_chunks(chunks, num_prefill_reqs=num_prefill_reqs)

    def tables_of(self, row: int, length: int) -> dict[str, GroupTable]:
        """Tables of one request that has ``length`` committed positions."""
        specs = self.target.cache_groups
        return shuffled_tables(specs, self.num_pages, [(length, length)], [row], compact=self.compact)

    def run(
        self,
        chunks: Sequence[tuple[int, int, Sequence[int]]],
        *,
        num_prefill_reqs: int = 0,
        hidden_layers: tuple[int, ...] = (),
        target: DeepseekV4Target | None = None,
    ) -> TargetOutput:
        """Run a pass over (row, start position, tokens) with the logits of every token."""
        layout = layout_of_chunks(chunks, num_prefill_reqs=num_prefill_reqs)
        tokens_T = torch.tensor([t for _, _, tokens in chunks for t in tokens], dtype=torch.int64, device=self.device)
        target = self.target if target is None else target
        return target.forward(layout, tokens_T, self.tables(layout), hidden_layers=hidden_layers)

    def draft_input(
        self,
        chunks: Sequence[tuple[int, int, Sequence[int]]],
        next_tokens: Sequence[int],
        hidden_TD: torch.Tensor | None,
        *,
        num_committed: Sequence[int],
        wanted: bool = True,
        extra: int = 8,
    ) -> DraftInput:
        """What a drafter gets after a pass over (row, start position, tokens)."""
        layout = layout_of_chunks(chunks)
        committed_B = torch.tensor(num_committed, device=self.device)
        starts_B = torch.tensor(layout.start_positions, device=self.device)
        next_T = torch.tensor(list(next_tokens), device=self.device)
        newest_B = torch.tensor(layout.query_starts[:-1], device=self.device) + committed_B - 1
        return DraftInput(
            layout=layout,
            next_tokens_T=next_T,
            hidden_TD=hidden_TD,
            num_committed_B=committed_B,
            last_tokens_B=next_T[newest_B],
            seq_lens_B=starts_B + committed_B,
            wanted_B=(wanted,) * layout.num_reqs,
            max_draft_B=(8,) * layout.num_reqs,
            limits_B=torch.full((layout.num_reqs,), 8 if wanted else 0, device=self.device),
            sampling=GreedyView(),
            histories=(),
            tables=self.tables(layout, extra=extra),
        )

    def dense_nextn_logits(self, tokens: Sequence[int], depth: int) -> list[torch.Tensor]:
        """Draft logits [L - 1, V] of every depth for a text, teacher-forced."""
        with torch.no_grad():
            streams = self.dense_streams(tokens)[None, :-1]
            following = torch.tensor([list(tokens[1:])])
            outputs = dense_nextn(self.nextn, self.target.model.embed, streams, following, depth=depth)
            return [self.nextn.logits(out[0], self.target.model.head) for out in outputs]

    def dense_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [L, V] of a text by the whole-sequence forward."""
        with torch.no_grad():
            streams = dense_forward(self.target.model, torch.tensor([list(tokens)])).streams
            return self.target.model.logits(streams)[0]

    def dense_streams(self, tokens: Sequence[int]) -> torch.Tensor:
        """Final streams [L, S, D] of a text."""
        with torch.no_grad():
            return dense_forward(self.target.model, torch.tensor([list(tokens)])).streams[0]


def layout_of_chunks(chunks: Sequence[tuple[int, int, Sequence[int]]], *, num_prefill_reqs: int = 0) -> RoundLayout:
    num_tokens = sum(len(tokens) for _, _, tokens in chunks)
    return RoundLayout(
        rows=tuple(row for row, _, _ in chunks),
        start_positions=tuple(start for _, start, _ in chunks),
        query_lens=tuple(len(tokens) for _, _, tokens in chunks),
        num_prefill_reqs=num_prefill_reqs,
        logit_rows=tuple(range(num_tokens)),
    )


def make_world(
    *,
    config: DeepseekV4Config = SMALL,
    max_context: int = 640,
    batch_invariant: bool = False,
    fixed_rows: int = 8,
    cache_dtype: str = "fp32",
    indexer_dtype: str = "plain",
    dtype: torch.dtype = torch.float32,
    few_rows: int = 8,
    device: torch.device = CPU,
    kernels: Kernels | None = None,
    seed: int = 0,
) -> PagedWorld:
    torch.manual_seed(seed)
    model, nextn = DeepseekV4Model(config), NextNModel(config)
    randomise(model, seed)
    randomise(nextn, seed + 1)
    model, nextn = model.to(device), nextn.to(device)
    if dtype != torch.float32:
        cast_parameters(model, dtype)
        cast_parameters(nextn, dtype)
    layout = target_layout(config, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype)
    specs = layout.slice_layers(0, config.num_hidden_layers).group_specs()
    num_pages = {spec.group_id: 1 + 4 * (spec.pages_for(max_context) + 1) for spec in specs}
    passes = PassConfig(
        max_context=max_context,
        batch_invariant=batch_invariant,
        fixed_rows=fixed_rows,
        few_rows=few_rows,
        kernels=kernels,
    )
    target = DeepseekV4Target.build(
        model, num_pages, passes, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype, poison=True
    )
    return PagedWorld(target=target, nextn=nextn, num_pages=num_pages, device=device)


@pytest.fixture
def small_config() -> DeepseekV4Config:
    return SMALL


@pytest.fixture
def world_of() -> Callable[..., PagedWorld]:
    """Factory of test worlds."""
    return make_world


@pytest.fixture
def world() -> PagedWorld:
    """A float32 world with plain caches."""
    return make_world()


@pytest.fixture
def text() -> list[int]:
    """Random token ids, long enough for several pages of every group."""
    generator = random.Random(7)
    return [generator.randrange(SMALL.vocab_size) for _ in range(600)]


@pytest.fixture
def world_around() -> Callable[[DeepseekV4Model], PagedWorld]:
    """Factory of float32 worlds with plain caches around a model that exists already."""

    def make(model: DeepseekV4Model, *, max_context: int = 640) -> PagedWorld:
        from backends.deepseek_v4.target import target_layout

        layout = target_layout(model.config, cache_dtype="fp32", indexer_dtype="plain")
        specs = layout.slice_layers(0, model.config.num_hidden_layers).group_specs()
        num_pages = {spec.group_id: 1 + 4 * (spec.pages_for(max_context) + 1) for spec in specs}
        passes = PassConfig(max_context=max_context)
        target = DeepseekV4Target.build(
            model, num_pages, passes, cache_dtype="fp32", indexer_dtype="plain", poison=True
        )
        return PagedWorld(target=target, nextn=NextNModel(model.config), num_pages=num_pages)

    return make
