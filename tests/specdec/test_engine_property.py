"""Invariant 5: whatever arrives, and however short pages are, plain decoding's output.

Invariant 8 holds in every round: no page or row is lost.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.oracle import OracleConfig
from specdec.api import DrafterConfig, DraftSetup, Verifier
from specdec.engine import Engine, EngineConfig
from specdec.identities import check_identities
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, TableDraft, TableTarget, WatchedDrafter
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

MAX_CONTEXT = 40
VOCABULARY = 9
EOS = 0


def letters(ids) -> str:
    return "".join("abcdefghi"[i] for i in ids)


@dataclass(frozen=True)
class World:
    rows_per_page: int
    window: int
    history_weight: float
    sharpness: float

    def target(self) -> TableTarget:
        return TableTarget(
            vocab_size=VOCABULARY,
            max_context=MAX_CONTEXT,
            rows_per_page=self.rows_per_page,
            window=self.window,
            history_weight=self.history_weight,
            sharpness=self.sharpness,
        )


worlds = st.builds(
    World,
    rows_per_page=st.integers(1, 6),
    window=st.integers(3, 11),
    history_weight=st.sampled_from([0.0, 0.3, 1.0]),
    sharpness=st.sampled_from([1.0, 3.0]),
)

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 3),
    max_new_tokens=st.integers(2, 45),
    min_new_tokens=st.integers(0, 2),
    stop=st.lists(st.text("abcdefghi", min_size=1, max_size=3), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(1, VOCABULARY - 1), max_size=1).map(tuple),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    logprobs=st.booleans(),
)

prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=MAX_CONTEXT - 1).map(tuple)

workloads = st.lists(st.tuples(st.integers(0, 12), prompts, samplings), min_size=1, max_size=7)

drafter_configs = st.one_of(
    st.builds(NgramConfig, num_draft_tokens=st.integers(1, 6), match=st.sampled_from(["latest", "earliest"])),
    st.builds(NextnConfig, num_draft_tokens=st.integers(1, 6), proposals=st.sampled_from(["sampled", "greedy"])),
)

ENOUGH_PAGES = 4 + 2 * MAX_CONTEXT


def least_pages(world: World, chunk: int, num_draft_tokens: int) -> int:
    """Pages of one request: its whole history, or the window with the widest pass and the draft behind it."""
    span = world.window + max(chunk, num_draft_tokens + 1) + num_draft_tokens
    return 4 + max(MAX_CONTEXT, span) // world.rows_per_page


@st.composite
def engine_configs(draw: st.DrawFn, world: World, num_draft_tokens: int) -> EngineConfig:
    """Engines from cramped (barely the pages of the longest request) to roomy."""
    max_batch, chunk = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    least = least_pages(world, chunk, num_draft_tokens)
    num_pages = draw(st.one_of(st.none(), st.integers(least, least + 20)))
    return EngineConfig(max_batch=max_batch, prefill_chunk=chunk, num_pages=num_pages)


def build(config: DrafterConfig, target: TableTarget, max_batch: int) -> tuple[WatchedDrafter, TableDraft]:
    backend = TableDraft(target)
    setup = DraftSetup(
        device=target.device,
        vocab_size=target.vocab_size,
        max_batch=max_batch,
        max_context=target.max_context,
        draft_backend=backend,
    )
    return WatchedDrafter(config.build(setup), target.vocab_size), backend


def plain_outputs(world: World, verifier: Verifier, requests: list[Request]) -> dict[str, RequestOutput]:
    """Each request alone, without drafts, its prompt in one chunk."""
    outputs = {}
    for request in requests:
        engine = Engine(world.target(), PlainDrafter(), verifier, EngineConfig(), (EOS,), letters)
        engine.add(request)
        outputs[request.request_id] = engine.run()[0]
    return outputs


def run_arrivals(engine: Engine, arrivals: list[tuple[int, Request]]) -> dict[str, RequestOutput]:
    """Requests join at their round; integrity is checked in every round, at the end that no page is in use."""
    waiting, number = sorted(arrivals, key=lambda pair: pair[0]), 0
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= number:
            engine.add(waiting.pop(0)[1])
        engine.run_round()
        engine.check_integrity()
        number += 1
    return {output.request_id: output for output in engine.take_outputs()}


def assert_rows_add_up(output: RequestOutput) -> None:
    emitted = [token for step in output.steps for token in step.output_ids]
    assert list(output.output_ids[1:]) == emitted
    for number, step in enumerate(output.steps):
        assert step.step == number
        assert 0 <= step.accepted <= step.verified == len(step.draft_ids)
        assert 1 <= step.emitted <= step.accepted + 1
        is_last = number == len(output.steps) - 1
        assert step.cut == (output.finish_reason.value if is_last else "none")
        kept = min(step.accepted, step.emitted)
        assert tuple(step.output_ids[:kept]) == tuple(step.draft_ids[:kept])


@settings(deadline=None, max_examples=30)
@given(data=st.data(), world=worlds, workload=workloads, config=drafter_configs)
def test_engine_equals_plain_decoding_for_any_arrivals_and_page_pressure(data, world, workload, config) -> None:
    verifier = data.draw(st.sampled_from([GreedyVerifier(), GumbelVerifier()]))
    engine_config = data.draw(engine_configs(world, config.num_draft_tokens))
    arrivals = [
        (round_number, Request(request_id=str(i), prompt=prompt, sampling=sampling))
        for i, (round_number, prompt, sampling) in enumerate(workload)
    ]
    plain = plain_outputs(world, verifier, [request for _, request in arrivals])
    target = world.target()
    drafter, backend = build(config, target, engine_config.max_batch)
    groups = backend.cache_groups if config.needs.draft_backend else ()
    engine = Engine(target, drafter, verifier, engine_config, (EOS,), letters, draft_groups=groups)
    outputs = run_arrivals(engine, arrivals)
    assert backend.num_dropped == 0
    steps = [step for output in outputs.values() for step in output.steps]
    assert check_identities(steps, {(o.request_id, o.turn): len(o.output_ids) for o in outputs.values()}) == ()
    for name, expected in plain.items():
        found = outputs[name]
        assert (found.output_ids, found.text) == (expected.output_ids, expected.text)
        assert found.finish_reason is expected.finish_reason
        assert_rows_add_up(found)
        if expected.logprobs is None:
            assert found.logprobs is None
        else:
            assert len(found.logprobs) == len(found.output_ids)
            torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs))


pressed_worlds = st.builds(
    World,
    rows_per_page=st.integers(2, 5),
    window=st.integers(4, 8),
    history_weight=st.just(0.3),
    sharpness=st.just(3.0),
)


@st.composite
def pressed_arrivals(draw: st.DrawFn) -> list[tuple[int, Request]]:
    """Enough long requests, a few rounds apart, that they compete for pages most of the time."""
    budgets = st.integers(12, 30)
    sampling = st.builds(
        SamplingParams,
        max_new_tokens=budgets,
        ignore_eos=st.booleans(),
        stop_token_ids=st.lists(st.integers(1, VOCABULARY - 1), max_size=1).map(tuple),
        stop=st.lists(st.text("abcdefghi", min_size=2, max_size=3), max_size=1).map(tuple),
    )
    prompt = st.lists(st.integers(0, VOCABULARY - 1), min_size=4, max_size=24).map(tuple)
    workload = draw(st.lists(st.tuples(st.integers(0, 3), prompt, sampling), min_size=12, max_size=16))
    arrivals, number = [], 0
    for i, (pause, tokens, params) in enumerate(workload):
        number += pause
        arrivals.append((number, Request(request_id=str(i), prompt=tokens, sampling=params)))
    return arrivals


@pytest.mark.parametrize(
    ("verifier", "family"),
    [
        (GreedyVerifier(), NgramConfig),
        (GumbelVerifier(), NextnConfig),
        (RejectionVerifier(), NextnConfig),
    ],
)
def test_engine_survives_hundreds_of_rounds_under_page_pressure(verifier: Verifier, family: type) -> None:
    totals = {"rounds": 0, "preemptions": 0}

    # The same examples every time, so that the totals below are facts about the test and not about luck.
    @settings(deadline=None, max_examples=12, derandomize=True)
    @given(world=pressed_worlds, arrivals=pressed_arrivals(), num_draft_tokens=st.integers(1, 6), data=st.data())
    def serve(world: World, arrivals: list[tuple[int, Request]], num_draft_tokens: int, data: st.DataObject) -> None:
        target = world.target()
        max_batch, chunk = data.draw(st.integers(3, 5)), data.draw(st.integers(4, 9))
        drafter, backend = build(family(num_draft_tokens=num_draft_tokens), target, max_batch)
        num_pages = least_pages(world, chunk, num_draft_tokens) + data.draw(st.integers(0, 1))
        config = EngineConfig(max_batch=max_batch, prefill_chunk=chunk, num_pages=num_pages)
        groups = backend.cache_groups if drafter.needs.draft_backend else ()
        engine = Engine(target, drafter, verifier, config, (EOS,), letters, draft_groups=groups)
        outputs = run_arrivals(engine, arrivals)
        assert backend.num_dropped == 0
        totals["rounds"] += len(engine.rounds)
        totals["preemptions"] += sum(output.num_preemptions for output in outputs.values())
        if verifier.name != "rejection":
            plain = plain_outputs(world, verifier, [request for _, request in arrivals])
            assert {n: o.output_ids for n, o in outputs.items()} == {n: o.output_ids for n, o in plain.items()}

    serve()
    assert totals["rounds"] >= 200 and totals["preemptions"] > 10, totals


def test_rejection_output_does_not_depend_on_batch_or_preemption() -> None:
    world = World(rows_per_page=4, window=6, history_weight=0.3, sharpness=2.0)
    requests = [
        Request(
            request_id=str(i),
            prompt=tuple(range(1, 6 + i)),
            sampling=SamplingParams(max_new_tokens=25, ignore_eos=True),
        )
        for i in range(4)
    ]

    def outputs_of(config: EngineConfig) -> tuple[dict[str, tuple[int, ...]], int]:
        target = world.target()
        drafter, backend = build(NextnConfig(num_draft_tokens=3), target, config.max_batch)
        engine = Engine(target, drafter, RejectionVerifier(), config, draft_groups=backend.cache_groups)
        found = run_arrivals(engine, [(0, request) for request in requests])
        return {n: o.output_ids for n, o in found.items()}, sum(o.num_preemptions for o in found.values())

    alone, _ = outputs_of(EngineConfig())
    shared, num_preemptions = outputs_of(EngineConfig(max_batch=4, prefill_chunk=4, num_pages=15))
    assert num_preemptions > 0
    assert shared == alone


@settings(deadline=None, max_examples=15)
@given(num_draft_tokens=st.integers(1, 7), window=st.integers(3, 9), rows=st.integers(1, 5))
def test_exact_draft_is_accepted_whole(num_draft_tokens: int, window: int, rows: int) -> None:
    world = World(rows_per_page=rows, window=window, history_weight=0.0, sharpness=1.0)
    target = world.target()
    drafter, backend = build(NextnConfig(num_draft_tokens=num_draft_tokens), target, 3)
    config = EngineConfig(max_batch=3, prefill_chunk=5)
    engine = Engine(target, drafter, RejectionVerifier(), config, draft_groups=backend.cache_groups)
    sampling = SamplingParams(max_new_tokens=25)
    requests = [Request(request_id=str(i), prompt=(i + 1,) * (i + 1), sampling=sampling) for i in range(4)]
    outputs = run_arrivals(engine, [(0, request) for request in requests])
    steps = [step for output in outputs.values() for step in output.steps]
    assert all(step.accepted == step.proposed for step in steps)
    assert max(step.proposed for step in steps) == num_draft_tokens


def test_oracle_of_plain_decoding_is_accepted_whole() -> None:
    world = World(rows_per_page=4, window=6, history_weight=1.0, sharpness=2.0)
    requests = [
        Request(request_id=str(i), prompt=(1, 2, i), sampling=SamplingParams(max_new_tokens=21, seed=i))
        for i in range(3)
    ]
    plain = plain_outputs(world, GumbelVerifier(), requests)
    references = tuple((o.prompt_ids, o.output_ids) for o in plain.values())
    target = world.target()
    drafter, _ = build(OracleConfig(accuracy=(1.0,), references=references, num_draft_tokens=4), target, 2)
    engine = Engine(target, drafter, GumbelVerifier(), EngineConfig(max_batch=2), (EOS,), letters)
    outputs = run_arrivals(engine, [(0, request) for request in requests])
    for name, output in outputs.items():
        assert output.output_ids == plain[name].output_ids
        assert all(step.accepted == step.proposed for step in output.steps)
