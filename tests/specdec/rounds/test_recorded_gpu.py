"""Recorded rounds as real CUDA graphs over the toy models: what they give is what eager rounds give on the device."""

import pytest
import torch

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from specdec.api import DraftSetup
from specdec.engine import Engine, EngineConfig
from specdec.request import Request, RequestOutput
from specdec.rule_verifiers import BlockVerifier
from specdec.sampling_params import SamplingParams
from specdec.testing import TableDraft, TableTarget
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

pytestmark = pytest.mark.gpu

V = 997
KINDS = {
    "sampled": {},
    "greedy": {"temperature": 0.0},
    "filters": {"top_k": 20, "top_p": 0.9},
    "everything": {"repetition_penalty": 1.2, "min_new_tokens": 4, "stop_token_ids": (5,), "logprobs": True},
}


def run(drafter, verifier, graphs: bool, options: dict) -> tuple[dict[str, RequestOutput], Engine]:
    """Four requests that join and leave; integrity is checked after every round."""
    device = torch.device("cuda")
    target = TableTarget(vocab_size=V, max_context=64, sharpness=3.0, history_weight=0.3, num_rows=4096, device=device)
    backend = TableDraft(target)
    setup = DraftSetup(device=device, vocab_size=V, max_batch=3, max_context=64, draft_backend=backend)
    live = drafter.build(setup)
    groups = backend.cache_groups if live.needs.draft_backend else ()
    config = EngineConfig(max_batch=3, prefill_chunk=6, num_pages=24, graphs=graphs)
    engine = Engine(target, live, verifier, config, draft_groups=groups)
    waiting = [
        Request(
            request_id=str(i),
            prompt=tuple(1 + (7 * i + j) % 50 for j in range(2 + 5 * i)),
            sampling=SamplingParams(**{"seed": i, "max_new_tokens": 12 + 6 * i, "ignore_eos": True, **options}),
        )
        for i in range(5)
    ]
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop(0))
        engine.run_round()
        engine.check_integrity()
    assert backend.num_dropped == 0
    return {output.request_id: output for output in engine.take_outputs()}, engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verifier", [GreedyVerifier(), GumbelVerifier(), RejectionVerifier(), BlockVerifier()])
def test_graph_replay_equals_eager_rounds(verifier, kind: str) -> None:
    drafter = NextnConfig(num_draft_tokens=3)
    expected, _ = run(drafter, verifier, False, KINDS[kind])
    found, engine = run(drafter, verifier, True, KINDS[kind])
    for name, output in expected.items():
        assert found[name].output_ids == output.output_ids
        assert [step.draft_ids for step in found[name].steps] == [step.draft_ids for step in output.steps]
        assert [step.overlap for step in found[name].steps] == [step.overlap for step in output.steps]
        assert found[name].logprobs == output.logprobs
    assert engine.execution.num_captured_rounds > 5


@pytest.mark.parametrize("drafter", [NoneConfig(), NgramConfig(num_draft_tokens=4)])
def test_graph_replay_equals_eager_rounds_for_drafters_outside_of_the_graph(drafter) -> None:
    expected, _ = run(drafter, GumbelVerifier(), False, {})
    found, engine = run(drafter, GumbelVerifier(), True, {})
    assert {n: o.output_ids for n, o in found.items()} == {n: o.output_ids for n, o in expected.items()}
    assert engine.execution.graphs_why == "engine.graphs=true"


def test_graphs_are_the_default_on_a_gpu() -> None:
    target = TableTarget(device=torch.device("cuda"))
    setup = DraftSetup(device=target.device, vocab_size=13, max_batch=1, max_context=96)
    engine = Engine(target, NoneConfig().build(setup), GumbelVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1, 2), sampling=SamplingParams(max_new_tokens=9)))
    engine.record_ahead()
    assert engine.execution.captured == ("1x1 sampled",)
    engine.run()
    assert engine.execution.num_eager_rounds == 0 < engine.execution.num_captured_rounds


@pytest.mark.parametrize("options", [{}, {"logprobs": True}])
def test_round_has_one_copy_to_the_host_and_reads_from_pinned_memory_only(options: dict) -> None:
    device = torch.device("cuda")
    target = TableTarget(vocab_size=V, max_context=64, sharpness=3.0, history_weight=0.3, num_rows=4096, device=device)
    backend = TableDraft(target)
    setup = DraftSetup(device=device, vocab_size=V, max_batch=2, max_context=64, draft_backend=backend)
    live = NextnConfig(num_draft_tokens=3).build(setup)
    config = EngineConfig(max_batch=2, prefill_chunk=6)
    engine = Engine(target, live, RejectionVerifier(), config, draft_groups=backend.cache_groups)
    for i in range(2):
        sampling = SamplingParams(max_new_tokens=40, ignore_eos=True, **options)
        engine.add(Request(request_id=str(i), prompt=(1, 2), sampling=sampling))
    engine.record_ahead()
    while engine.execution.num_captured_rounds < 3:
        engine.run_round()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(4):
            engine.run_round()
        torch.cuda.synchronize()
    copies = [event.name for event in trace.events() if event.name.startswith("Memcpy")]
    assert sum("DtoH" in name for name in copies) == 4, copies
    assert not any("Pageable" in name for name in copies), copies
