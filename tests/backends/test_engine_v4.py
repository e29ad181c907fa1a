"""The whole mechanism with the real models: V4 target, NextN draft, engine; text equal to plain decoding."""

from collections.abc import Callable

import pytest
import torch

from backends.deepseek_v4.passes import target_layout
from backends.deepseek_v4.pool import CachePool
from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from specdec.api import DrafterConfig, DraftSetup, DraftTree, RoundLayout
from specdec.engine import Engine, EngineConfig
from specdec.errors import UnsupportedError
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, WatchedDrafter, run_checked
from specdec.verifiers import GumbelVerifier

MAX_CONTEXT = 160


def make_requests(text: list[int]) -> list[Request]:
    """Prompts that cross pages and, while they decode, boundaries of both compression ratios."""
    spans = ((0, 3, 20), (10, 60, 30), (80, 118, 22))
    return [
        Request(
            request_id=str(start),
            prompt=tuple(text[start : start + length]),
            sampling=SamplingParams(temperature=0.8, max_new_tokens=budget),
        )
        for start, length, budget in spans
    ]


def draft_backend(world, max_batch: int) -> NextNBackend:
    """The NextN model over a pool of its own with as many pages as the target's."""
    config, target = world.target.model.config, world.target
    layers = target_layout(config, cache_dtype="fp32", indexer_dtype="plain")
    draft_layers = layers.slice_layers(config.num_hidden_layers, config.num_hidden_layers + 1)
    pages = {spec.group_id: world.num_pages[spec.group_id] for spec in draft_layers.group_specs()}
    return NextNBackend(
        world.nextn,
        embed=target.model.embed,
        head=target.model.head,
        pool=CachePool(draft_layers, pages, device=target.device, poison=True),
        max_context=target.max_context,
        config=NextNBackendConfig(max_batch=max_batch),
    )


def make_engine(world, drafter: DrafterConfig | None, config: EngineConfig) -> Engine:
    target, backend = world.target, draft_backend(world, config.max_batch)
    setup = DraftSetup(
        device=target.device,
        vocab_size=target.vocab_size,
        max_batch=config.max_batch,
        max_context=target.max_context,
        draft_backend=backend,
    )
    live = PlainDrafter() if drafter is None else WatchedDrafter(drafter.build(setup), target.vocab_size)
    groups = backend.cache_groups if live.needs.draft_backend else ()
    return Engine(target, live, GumbelVerifier(), config, draft_groups=groups)


@pytest.fixture
def plain(world_of: Callable, text: list[int]) -> dict[str, RequestOutput]:
    engine = make_engine(world_of(), None, EngineConfig(max_context=MAX_CONTEXT))
    return run_checked(engine, make_requests(text))


def test_v4_with_drafts_decodes_the_text_of_plain_decoding(world_of, text, plain) -> None:
    roomy = EngineConfig(max_batch=2, max_context=MAX_CONTEXT, prefill_chunk=40)
    cramped = EngineConfig(max_batch=3, max_context=MAX_CONTEXT, prefill_chunk=24, num_pages=22)
    num_preemptions, acceptance = 0, []
    for drafter, config in (
        (NextnConfig(num_draft_tokens=3), roomy),
        (NextnConfig(num_draft_tokens=3), cramped),
        (NgramConfig(num_draft_tokens=5), roomy),
    ):
        outputs = run_checked(make_engine(world_of(), drafter, config), make_requests(text))
        assert {n: o.output_ids for n, o in outputs.items()} == {n: o.output_ids for n, o in plain.items()}
        num_preemptions += sum(output.num_preemptions for output in outputs.values())
        acceptance.append([[s.accepted for s in outputs[name].steps] for name in sorted(outputs)])
    assert num_preemptions > 0
    # The drafts do not depend on chunks, batch or preemption either.
    assert acceptance[0] == acceptance[1]
    assert sum(map(sum, acceptance[0])) > 0


def test_v4_refuses_trees_by_name(world_of) -> None:
    with pytest.raises(UnsupportedError, match="DeepseekV4Target verifies chains, and the drafter proposes trees"):
        make_engine(world_of(), NgramConfig(branches=2), EngineConfig(max_context=MAX_CONTEXT))
    layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(3,), trees=(DraftTree((-1, -1)),))
    with pytest.raises(UnsupportedError, match="DeepSeek-V4 targets verify chains, not trees: .* cannot hold siblings"):
        world_of().target.forward(layout, torch.tensor([1, 2, 3]), {})
