"""Invariants 6 and 7: recorded rounds give what eager rounds give, bit for bit, whatever arrives and leaves.

The recorded function is called where there is no CUDA device, over the same arenas.
"""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from specdec.api import DrafterConfig, DraftSetup, Verifier
from specdec.engine import Engine, EngineConfig
from specdec.request import Request, RequestOutput
from specdec.rule_verifiers import BlockVerifier, ThresholdVerifierConfig, TypicalVerifierConfig
from specdec.sampling_params import SamplingParams
from specdec.step_row import StepRow
from specdec.testing import ForcedVerifier, TableDraft, TableTarget, WatchedDrafter
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

V, MAX_CONTEXT, EOS = 9, 40, 0
TIMES = {"draft_us", "verify_us", "other_us"}

VERIFIERS = (
    GreedyVerifier(),
    GumbelVerifier(),
    RejectionVerifier(),
    BlockVerifier(),
    TypicalVerifierConfig().build(),
    ThresholdVerifierConfig().build(),
    ForcedVerifier((0, 2, 1, 99, 0)),
)


def letters(ids) -> str:
    return "".join("abcdefghi"[i] for i in ids)


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 3),
    max_new_tokens=st.integers(2, 45),
    min_new_tokens=st.integers(0, 2),
    stop=st.lists(st.text("abcdefghi", min_size=1, max_size=3), max_size=1).map(tuple),
    stop_token_ids=st.lists(st.integers(1, V - 1), max_size=1).map(tuple),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.booleans(),
)
prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=MAX_CONTEXT - 1).map(tuple)
workloads = st.lists(st.tuples(st.integers(0, 12), prompts, samplings), min_size=1, max_size=7)
drafter_configs = st.one_of(
    st.just(NoneConfig()),
    st.builds(NgramConfig, num_draft_tokens=st.integers(1, 6)),
    st.builds(NextnConfig, num_draft_tokens=st.integers(1, 6), proposals=st.sampled_from(["sampled", "greedy"])),
)


class Run:
    """One engine over its own toy, and how many rounds of it were recorded."""

    def __init__(self, drafter: DrafterConfig, verifier: Verifier, config: EngineConfig, rows_per_page: int) -> None:
        target = TableTarget(
            vocab_size=V, max_context=MAX_CONTEXT, rows_per_page=rows_per_page, history_weight=0.3, num_rows=4096
        )
        self.backend = TableDraft(target)
        setup = DraftSetup(
            device=target.device,
            vocab_size=V,
            max_batch=config.max_batch,
            max_context=MAX_CONTEXT,
            draft_backend=self.backend,
        )
        live = WatchedDrafter(drafter.build(setup), V)
        groups = self.backend.cache_groups if live.needs.draft_backend else ()
        self.engine = Engine(target, live, verifier, config, (EOS,), letters, draft_groups=groups)

    def outputs(self, arrivals: list[tuple[int, Request]]) -> dict[str, RequestOutput]:
        """Requests join at their round; the pages are counted after every round."""
        waiting, number = sorted(arrivals, key=lambda pair: pair[0]), 0
        while waiting or self.engine.has_work:
            while waiting and waiting[0][0] <= number:
                self.engine.add(waiting.pop(0)[1])
            self.engine.run_round()
            self.engine.check_integrity()
            number += 1
        assert self.backend.num_dropped == 0
        return {output.request_id: output for output in self.engine.take_outputs()}


def facts(step: StepRow) -> dict[str, object]:
    return {field.name: getattr(step, field.name) for field in fields(step) if field.name not in TIMES}


def assert_same(eager: dict[str, RequestOutput], recorded: dict[str, RequestOutput]) -> None:
    assert recorded.keys() == eager.keys()
    for name, expected in eager.items():
        found = recorded[name]
        assert (found.output_ids, found.text, found.finish_reason, found.num_preemptions) == (
            expected.output_ids,
            expected.text,
            expected.finish_reason,
            expected.num_preemptions,
        )
        assert [facts(step) for step in found.steps] == [facts(step) for step in expected.steps]
        assert found.logprobs == expected.logprobs


def least_pages(rows_per_page: int, chunk: int, num_draft_tokens: int) -> int:
    span = 8 + max(chunk, num_draft_tokens + 1) + num_draft_tokens
    return 4 + max(MAX_CONTEXT, span) // rows_per_page


@settings(deadline=None, max_examples=60)
@given(data=st.data(), workload=workloads, drafter=drafter_configs, verifier=st.sampled_from(VERIFIERS))
def test_recorded_rounds_give_what_eager_rounds_give(data, workload, drafter, verifier) -> None:
    max_batch, chunk = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    rows_per_page = data.draw(st.integers(1, 5))
    least = least_pages(rows_per_page, chunk, drafter.num_draft_tokens)
    num_pages = data.draw(st.one_of(st.none(), st.integers(least, least + 20)))
    sizes = data.draw(st.one_of(st.none(), st.sets(st.integers(1, max_batch), min_size=1).map(tuple)))
    arrivals = [
        (number, Request(request_id=str(i), prompt=prompt, sampling=sampling))
        for i, (number, prompt, sampling) in enumerate(workload)
    ]

    def run(graphs: bool) -> tuple[dict[str, RequestOutput], Engine]:
        config = EngineConfig(
            max_batch=max_batch, prefill_chunk=chunk, num_pages=num_pages, graphs=graphs, graph_batch_sizes=sizes
        )
        made = Run(drafter, verifier, config, rows_per_page)
        return made.outputs(arrivals), made.engine

    eager, plain_engine = run(False)
    recorded, engine = run(True)
    assert_same(eager, recorded)
    pure = [record for record in engine.rounds if not record.num_prompt_tokens]
    ran = engine.execution
    assert ran.num_captured_rounds + ran.num_above_sizes == len(pure) == plain_engine.execution.num_eager_rounds
    above = [record for record in pure if record.num_live > max(engine.config.graph_sizes)]
    assert ran.num_above_sizes == len(above)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
@pytest.mark.parametrize(
    "drafter", [NoneConfig(), NgramConfig(), NextnConfig()], ids=lambda config: type(config).__name__
)
def test_every_verifier_and_drafter_can_be_recorded(verifier: Verifier, drafter: DrafterConfig) -> None:
    requests = [
        Request(
            request_id=str(i),
            prompt=tuple(1 + (i + j) % 5 for j in range(3 + 4 * i)),
            sampling=SamplingParams(temperature=(0.0, 0.9)[i % 2], max_new_tokens=9 + 3 * i, ignore_eos=True),
        )
        for i in range(4)
    ]
    runs = []
    for graphs in (False, True):
        made = Run(drafter, verifier, EngineConfig(max_batch=3, prefill_chunk=6, graphs=graphs), 4)
        runs.append(made.outputs([(2 * i, request) for i, request in enumerate(requests)]))
    assert_same(*runs)
    assert made.engine.execution.num_captured_rounds > 0
    assert torch.is_grad_enabled()
