"""A recorded round: no host read inside, one copy of its result, padding that does no harm, tensors that stay."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from drafters.nextn import NextnConfig
from specdec.api import DraftSetup, PackedPass, TargetOutput
from specdec.engine import Engine, EngineConfig
from specdec.errors import ConfigError
from specdec.request import Request, RequestOutput
from specdec.rule_verifiers import BlockVerifier
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, TableDraft, TableTarget
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

V = 13
HOST_READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")
POISON = 1e20


class PoisonedTarget(TableTarget):
    """Gives padding tokens large logits and states."""

    def forward_packed(self, packed: PackedPass, *, hidden_layers: tuple[int, ...] = ()) -> TargetOutput:
        output = super().forward_packed(packed, hidden_layers=hidden_layers)
        is_padding_T1 = (packed.positions_T < 0).unsqueeze(1)
        hidden_TD = output.hidden_TD
        return TargetOutput(
            logits_RV=torch.where(is_padding_T1, POISON, output.logits_RV),
            hidden_TD=None if hidden_TD is None else torch.where(is_padding_T1, 113.0, hidden_TD),
        )


def engine_of(
    drafter=None, verifier=None, *, target: TableTarget | None = None, max_context: int = 64, **config
) -> tuple[Engine, TableDraft]:
    target = target or TableTarget(history_weight=0.3, max_context=max_context)
    backend = TableDraft(target)
    setup = DraftSetup(device=target.device, vocab_size=V, max_batch=4, max_context=max_context, draft_backend=backend)
    live = (drafter or NextnConfig(num_draft_tokens=3)).build(setup)
    groups = backend.cache_groups if live.needs.draft_backend else ()
    settings = EngineConfig(**{"max_batch": 4, "prefill_chunk": 8, **config})
    return Engine(target, live, verifier or RejectionVerifier(), settings, draft_groups=groups), backend


def requests(count: int, **options) -> list[Request]:
    """Requests that end one after the other, so that every number of them decodes for a while."""
    return [
        Request(
            request_id=str(i),
            prompt=tuple(1 + (i + j) % 6 for j in range(2 + 3 * i)),
            sampling=SamplingParams(
                **{"temperature": 0.9, "max_new_tokens": 16 + 7 * i, "ignore_eos": True, **options}
            ),
        )
        for i in range(count)
    ]


def outputs_of(engine: Engine, added: list[Request], *, before_round=lambda: None) -> dict[str, RequestOutput]:
    for request in added:
        engine.add(request)
    while engine.has_work:
        before_round()
        engine.run_round()
        engine.check_integrity()
    return {output.request_id: output for output in engine.take_outputs()}


def texts(outputs: dict[str, RequestOutput]) -> dict[str, tuple]:
    return {
        name: (output.output_ids, [(step.draft_ids, step.accepted, step.overlap) for step in output.steps])
        for name, output in outputs.items()
    }


@pytest.mark.parametrize("verifier", [GreedyVerifier(), GumbelVerifier(), RejectionVerifier(), BlockVerifier()])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_replay_equals_eager_for_every_live_batch_with_poisoned_padding(verifier, size: int) -> None:
    for count in (1, 2, 3, 4):
        eager, _ = engine_of(verifier=verifier, graphs=False)
        target = PoisonedTarget(history_weight=0.3, max_context=64)
        recorded, backend = engine_of(verifier=verifier, target=target, graphs=True, graph_batch_sizes=(size,))
        added = requests(count, max_new_tokens=24)
        assert texts(outputs_of(recorded, added)) == texts(outputs_of(eager, added))
        assert any(record.num_live == count and not record.num_prompt_tokens for record in recorded.rounds)
        assert {key.split()[0] for key in recorded.execution.captured} <= {f"{size}x1", f"{size}x4"}
        assert backend.num_dropped == 0


def test_recording_between_rounds_disturbs_nothing() -> None:
    """Other kinds, sizes and widths are recorded while drafts with laws wait for their verification."""
    added = [*requests(4), *requests(6, temperature=0.4, top_k=5, logprobs=True)[4:]]
    eager, _ = engine_of(graphs=False)
    recorded, _ = engine_of(graphs=True)
    expected = outputs_of(eager, added)
    assert texts(outputs_of(recorded, added, before_round=recorded.record_ahead)) == texts(expected)
    assert len(recorded.execution.captured) >= 12


def test_tensors_of_recordings_never_move() -> None:
    engine, _ = engine_of(graphs=True)
    known: set[int] = set()

    def look() -> None:
        addresses = {tensor.data_ptr() for tensor in engine.recorded_tensors}
        assert known <= addresses, "a tensor that recordings read has moved"
        known.update(addresses)

    for params in ({}, {"repetition_penalty": 1.2}, {"temperature": 0.0}, {"top_p": 0.7, "logprobs": True}):
        outputs_of(engine, requests(4, **params), before_round=look)
    assert known


class Reads(TorchFunctionMode):
    """Counts calls that bring values of tensors to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in HOST_READS:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"logprobs": True}])
@pytest.mark.parametrize("verifier", [GumbelVerifier(), RejectionVerifier()])
def test_recorded_round_reads_no_tensor_but_its_result(verifier, options: dict) -> None:
    """What the recording copied to the host is read as an array, so a round reads no tensor at all."""
    engine, _ = engine_of(verifier=verifier, graphs=True)
    for request in requests(3, min_new_tokens=4, **options):
        engine.add(request)
    engine.record_ahead()
    num_rounds = 0
    while engine.has_work:
        with Reads() as reads:
            record = engine.run_round()
        if not record.num_prompt_tokens:
            assert reads.names == []
            num_rounds += 1
    assert num_rounds > 4 and engine.execution.num_captured_rounds == num_rounds


@pytest.mark.parametrize("options", [{}, {"logprobs": True}])
@pytest.mark.parametrize("verifier", [GumbelVerifier(), RejectionVerifier()])
def test_floats_come_with_the_integers_and_lose_no_bit(verifier, options: dict) -> None:
    eager, _ = engine_of(verifier=verifier, graphs=False)
    recorded, _ = engine_of(verifier=verifier, graphs=True)
    expected, found = (outputs_of(engine, requests(3, **options)) for engine in (eager, recorded))
    assert texts(found) == texts(expected)
    for name, output in expected.items():
        assert found[name].logprobs == output.logprobs
        assert (output.logprobs is not None) == bool(options)


class WidthChecker(RejectionVerifier):
    """Refuses proposals wider than the three drafts that there may be."""

    def judge(self, logits_BNV, proposal, sampling, positions_B):
        if proposal is not None:
            assert proposal.tokens_BK.shape[1] <= 3 and len(proposal.tokens_BK) == len(logits_BNV)
        return super().judge(logits_BNV, proposal, sampling, positions_B)


def test_drafts_of_a_recorded_round_are_verified_in_an_eager_one() -> None:
    """Prompts join while padded rounds with floats in their results draft for the others."""
    added = requests(6, logprobs=True)
    found = []
    for graphs in (False, True):
        engine, _ = engine_of(verifier=WidthChecker(), graphs=graphs, graph_batch_sizes=(4,) if graphs else None)
        waiting = list(added)

        def join(engine=engine, waiting=waiting) -> None:
            if waiting and len(engine.rounds) % 2 == 0:
                engine.add(waiting.pop(0))

        found.append(outputs_of(engine, [waiting.pop(0)], before_round=join))
        assert not waiting
    assert texts(found[1]) == texts(found[0])
    assert engine.execution.num_captured_rounds > 4
    assert any(record.num_prompt_tokens and record.num_steps for record in engine.rounds)


@pytest.mark.parametrize("graphs", [False, True])
def test_rows_have_the_times_of_their_round_and_are_whole_when_outputs_are_taken(graphs: bool) -> None:
    engine, _ = engine_of(graphs=graphs)
    for request in requests(3):
        engine.add(request)
    outputs = []
    while engine.has_work:
        engine.run_round()
        outputs += engine.take_outputs()
    assert len(outputs) == 3
    for output in outputs:
        assert 1 + sum(step.emitted for step in output.steps) == len(output.output_ids)
        assert [step.step for step in output.steps] == list(range(len(output.steps)))
        for step in output.steps:
            record = engine.rounds[step.round]
            assert (step.verify_us, step.draft_us, step.other_us) == (
                record.verify_us,
                record.draft_us,
                record.other_us,
            )


class PlainTarget:
    """A target without forward_packed."""

    def __init__(self) -> None:
        inner = TableTarget()
        self.vocab_size, self.max_context, self.device = inner.vocab_size, inner.max_context, inner.device
        self.cache_groups, self.forward = inner.cache_groups, inner.forward


def test_recording_a_target_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine.graphs=true cannot work: the target has no forward_packed"):
        Engine(PlainTarget(), PlainDrafter(), GreedyVerifier(), EngineConfig(graphs=True))
    engine = Engine(PlainTarget(), PlainDrafter(), GreedyVerifier(), EngineConfig())
    assert engine.execution.graphs_why == "engine.graphs=null and the target has no forward_packed"


def test_recording_under_batch_invariance_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine.batch_invariant"):
        engine_of(graphs=True, batch_invariant=True, fixed_rows=16)


@pytest.mark.parametrize("sizes", [(), (0,), (5,), (True,)])
def test_sizes_of_recordings_lie_within_the_batch(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="graph_batch_sizes"):
        EngineConfig(max_batch=4, graph_batch_sizes=sizes)


def test_sizes_default_to_powers_of_two_and_the_batch() -> None:
    sizes = {n: EngineConfig(max_batch=n).graph_sizes for n in (1, 2, 3, 4, 6, 8)}
    assert sizes == {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 6: (1, 2, 4, 6), 8: (1, 2, 4, 8)}


def test_batch_above_the_sizes_runs_eagerly_and_is_counted() -> None:
    engine, _ = engine_of(graphs=True, graph_batch_sizes=(2,))
    outputs_of(engine, requests(4))
    pure = [record.num_live for record in engine.rounds if not record.num_prompt_tokens]
    ran = engine.execution
    assert ran.num_above_sizes == ran.num_eager_rounds == sum(live > 2 for live in pure) > 0
    assert ran.num_captured_rounds == sum(live <= 2 for live in pure) > 0
