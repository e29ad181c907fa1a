"""Single rounds and single requests: what is refused, how requests end, what is recorded."""

import pytest
import torch

from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from drafters.oracle import OracleConfig
from specdec.api import LAST_LAYER, DrafterConfig, DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.engine import Engine, EngineConfig
from specdec.errors import CapacityError, ConfigError, MetadataError, UnsupportedError, WorkloadError
from specdec.request import FinishReason, Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, ScriptedTarget, TableTarget, run_checked
from specdec.verifiers import GreedyVerifier, GumbelVerifier

EOS = 12
# Script 1 of the target: what follows a prompt that begins with token 1.
SCRIPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5, 12, 6, 7, 8, 9, 10)
PROMPT = SCRIPT[:2]


def letters(ids) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


def scripted_engine(
    num_draft_tokens: int = 0,
    *,
    accuracy: float = 1.0,
    config: EngineConfig | None = None,
    script: tuple[int, ...] = SCRIPT,
    eos_ids: tuple[int, ...] = (EOS,),
    max_context: int = 96,
    bos_id: int | None = None,
) -> Engine:
    """An engine whose drafts are right with the given accuracy; without drafts for K = 0."""
    target = ScriptedTarget([script] * 13, max_context=max_context)
    drafter: DrafterConfig = NoneConfig()
    if num_draft_tokens:
        drafter = OracleConfig(
            num_draft_tokens=num_draft_tokens,
            accuracy=(accuracy,),
            continuation=lambda history: (*script, *script[-1:] * max_context)[len(history) :],
        )
    setup = DraftSetup(device=target.device, vocab_size=target.vocab_size, max_batch=4, max_context=max_context)
    return Engine(
        target,
        drafter.build(setup),
        GreedyVerifier(),
        config or EngineConfig(),
        eos_ids,
        letters,
        bos_id=bos_id,
    )


def run_one(engine: Engine, prompt: tuple[int, ...] = PROMPT, **sampling) -> RequestOutput:
    request = Request(request_id="a", prompt=prompt, sampling=SamplingParams(**sampling))
    return run_checked(engine, [request])["a"]


def test_engine_emits_the_script_until_the_end_of_sequence() -> None:
    output = run_one(scripted_engine())
    assert output.output_ids == SCRIPT[2:15]
    assert output.finish_reason is FinishReason.EOS
    assert output.num_steps == len(output.output_ids) - 1


def test_engine_with_exact_drafts_needs_fewer_rounds() -> None:
    output = run_one(scripted_engine(3))
    assert output.output_ids == SCRIPT[2:15]
    assert [step.emitted for step in output.steps] == [4, 4, 4]
    assert [step.bonus for step in output.steps] == [1, 1, 1]


def test_wrong_drafts_cost_nothing_but_acceptance() -> None:
    output = run_one(scripted_engine(3, accuracy=0.0))
    assert output.output_ids == SCRIPT[2:15]
    assert {step.accepted for step in output.steps} == {0}
    assert {step.bonus for step in output.steps if step.proposed} == {0}


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("sampling", "reason", "num_output"),
    [
        ({}, FinishReason.EOS, 13),
        ({"stop_token_ids": (7,)}, FinishReason.STOP, 5),
        ({"stop": ("hij",)}, FinishReason.STOP, 7),
        ({"stop": ("defg", "e")}, FinishReason.STOP, 2),
        ({"max_new_tokens": 1}, FinishReason.LENGTH, 1),
        ({"max_new_tokens": 2}, FinishReason.LENGTH, 2),
        ({"max_new_tokens": 7}, FinishReason.LENGTH, 7),
        ({"max_new_tokens": 13}, FinishReason.EOS, 13),
        ({"ignore_eos": True, "max_new_tokens": 18}, FinishReason.LENGTH, 18),
        ({"stop_token_ids": (3,), "min_new_tokens": 5}, FinishReason.STOP, 10),
    ],
)
def test_stops_inside_an_accepted_block_are_those_of_plain_decoding(
    num_draft_tokens, sampling, reason, num_output
) -> None:
    plain = run_one(scripted_engine(), **sampling)
    found = run_one(scripted_engine(num_draft_tokens), **sampling)
    assert (plain.finish_reason, len(plain.output_ids)) == (reason, num_output)
    assert (found.output_ids, found.text, found.finish_reason) == (
        plain.output_ids,
        plain.text,
        plain.finish_reason,
    )
    assert 1 + sum(step.emitted for step in found.steps) == num_output
    assert [step.cut for step in found.steps[:-1]] == ["none"] * (len(found.steps) - 1)


@pytest.mark.parametrize(("budget", "proposed"), [(2, [0]), (3, [1]), (7, [5]), (12, [8, 1]), (13, [8, 2])])
def test_drafts_and_the_token_after_them_fit_into_the_budget(budget: int, proposed: list[int]) -> None:
    output = run_one(scripted_engine(8), max_new_tokens=budget, ignore_eos=True)
    assert [step.proposed for step in output.steps] == proposed
    assert output.steps[-1].emitted == proposed[-1] + 1


def test_text_ends_before_the_stop_string_and_ids_hold_it() -> None:
    output = run_one(scripted_engine(4), stop=("gh",))
    assert output.text == "def"
    assert output.output_ids == (3, 4, 5, 6, 7)


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 31])
def test_context_limit_ends_a_request_whatever_is_drafted(num_draft_tokens: int) -> None:
    engine = scripted_engine(num_draft_tokens, max_context=9)
    output = run_one(engine, ignore_eos=True)
    assert output.finish_reason is FinishReason.CONTEXT
    assert output.output_ids == SCRIPT[2:9]


def test_budget_that_fills_the_context_ends_by_length() -> None:
    assert run_one(scripted_engine(3, max_context=9), max_new_tokens=7).finish_reason is FinishReason.LENGTH


def test_prompt_of_all_but_one_token_of_the_context_gets_one_token() -> None:
    output = run_one(scripted_engine(3, max_context=9), prompt=SCRIPT[:8])
    assert (output.output_ids, output.finish_reason) == ((SCRIPT[8],), FinishReason.CONTEXT)
    assert output.num_steps == 0


@pytest.mark.parametrize("length", [9, 10, 30])
def test_prompt_at_or_over_the_context_limit_is_refused_with_both_numbers(length: int) -> None:
    engine = scripted_engine(max_context=9)
    with pytest.raises(WorkloadError, match=rf"has {length} tokens and the context limit is 9"):
        engine.add(Request(request_id="a", prompt=(1,) * length))
    assert not engine.has_work


def test_configured_context_is_the_limit() -> None:
    output = run_one(scripted_engine(config=EngineConfig(max_context=6)), ignore_eos=True)
    assert (len(output.output_ids), output.finish_reason) == (4, FinishReason.CONTEXT)
    with pytest.raises(ConfigError, match="max_context must be an integer from 2 to 96, got 97"):
        scripted_engine(config=EngineConfig(max_context=97))


def test_empty_prompt_is_refused_without_a_begin_of_sequence_id() -> None:
    with pytest.raises(WorkloadError, match="prompt is empty"):
        scripted_engine().add(Request(request_id="a", prompt=()))


def test_empty_prompt_becomes_the_begin_of_sequence_id() -> None:
    output = run_one(scripted_engine(bos_id=1), prompt=(), max_new_tokens=3)
    assert (output.prompt_ids, output.output_ids) == ((1,), SCRIPT[1:4])


def test_no_end_of_sequence_id_at_all() -> None:
    output = run_one(scripted_engine(3, eos_ids=()), max_new_tokens=16)
    assert (output.output_ids, output.finish_reason) == (SCRIPT[2:18], FinishReason.LENGTH)


@pytest.mark.parametrize("prompt", [(1, 13), (-1,)])
def test_prompt_token_outside_the_vocabulary_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError, match=r"must lie in 0\.\.12"):
        scripted_engine().add(Request(request_id="a", prompt=prompt))


def test_stop_token_outside_the_vocabulary_is_refused() -> None:
    sampling = SamplingParams(stop_token_ids=(12, 13))
    with pytest.raises(WorkloadError, match=r"request a: .* the vocabulary has 13 tokens, got 13 .*stop_token_ids"):
        scripted_engine().add(Request(request_id="a", prompt=PROMPT, sampling=sampling))


def test_second_live_request_of_one_id_is_refused() -> None:
    engine = scripted_engine()
    engine.add(Request(request_id="a", prompt=PROMPT))
    engine.add(Request(request_id="a", prompt=PROMPT, turn=1))
    with pytest.raises(WorkloadError, match="request a turn 0 is not finished yet"):
        engine.add(Request(request_id="a", prompt=PROMPT))
    engine.run()
    engine.add(Request(request_id="a", prompt=PROMPT))
    assert len(engine.run()) == 1


def test_stop_string_without_a_tokenizer_is_refused() -> None:
    engine = Engine(TableTarget(), PlainDrafter(), GreedyVerifier(), EngineConfig())
    with pytest.raises(WorkloadError, match="stop strings need a tokenizer"):
        engine.add(Request(request_id="a", prompt=(1,), sampling=SamplingParams(stop=("x",))))


def test_request_that_all_pages_cannot_serve_is_refused_with_both_numbers() -> None:
    engine = scripted_engine(config=EngineConfig(num_pages=5))
    with pytest.raises(CapacityError, match=r"needs 5 pages of toy.history, 4 are available.*engine.num_pages"):
        engine.add(Request(request_id="a", prompt=PROMPT, sampling=SamplingParams(max_new_tokens=15)))
    engine.add(Request(request_id="b", prompt=PROMPT, sampling=SamplingParams(max_new_tokens=14)))
    assert len(engine.run()[0].output_ids) == 13


def test_full_batch_wider_than_the_fixed_rows_is_refused_by_name() -> None:
    config = EngineConfig(max_batch=2, batch_invariant=True, fixed_rows=8)
    scripted_engine(3, config=config)
    with pytest.raises(ConfigError, match=r"fixed_rows must be at least .* = 10 .*engine\.fixed_rows"):
        scripted_engine(4, config=config)


def test_no_pass_exceeds_the_fixed_rows_under_batch_invariance() -> None:
    config = EngineConfig(max_batch=3, batch_invariant=True, fixed_rows=9, prefill_chunk=512)
    target = TableTarget()
    setup = DraftSetup(device=target.device, vocab_size=13, max_batch=3, max_context=96)
    engine = Engine(target, NgramConfig(num_draft_tokens=2).build(setup), GreedyVerifier(), config)
    requests = [
        Request(request_id=str(i), prompt=(i, 2) * (3 + 4 * i), sampling=SamplingParams(max_new_tokens=30))
        for i in range(5)
    ]
    run_checked(engine, requests)
    sizes = [layout.num_tokens for layout in target.layouts]
    assert max(sizes) == 9
    assert any(layout.mode.value == "mixed" for layout in target.layouts)


def test_draft_model_without_its_cache_groups_is_refused() -> None:
    class Modelled(PlainDrafter):
        needs = DrafterNeeds(hidden_layers=(LAST_LAYER,), draft_backend=True)

    with pytest.raises(ConfigError, match="draft_groups"):
        Engine(TableTarget(), Modelled(), GreedyVerifier(), EngineConfig())


def test_log_probabilities_are_one_per_emitted_token() -> None:
    for num_draft_tokens in (0, 4):
        output = run_one(scripted_engine(num_draft_tokens), logprobs=True)
        assert len(output.logprobs) == len(output.output_ids)
        assert all(-0.01 < value <= 0 for value in output.logprobs)
    assert run_one(scripted_engine(4)).logprobs is None


def test_step_rows_tell_what_was_drafted_and_emitted() -> None:
    output = run_one(scripted_engine(3), stop_token_ids=(9,))
    first, last = output.steps
    assert (first.request_id, first.step, first.seq_len, first.num_live) == ("a", 0, 3, 1)
    assert (first.proposed, first.depth, first.verified, first.accepted, first.emitted) == (3, 3, 3, 3, 4)
    assert (tuple(first.draft_ids), tuple(first.output_ids)) == ((4, 5, 6), (4, 5, 6, 7))
    assert (first.cut, first.bonus) == ("none", 1)
    assert (last.accepted, last.emitted, last.cut, last.bonus) == (3, 2, "stop", 0)
    assert tuple(last.output_ids) == (8, 9)
    assert last.round == first.round + 1


def test_round_records_hold_the_time_of_each_phase() -> None:
    engine = scripted_engine(3, config=EngineConfig(prefill_chunk=2))
    output = run_one(engine, prompt=SCRIPT[:5])
    assert [record.num_prompt_tokens for record in engine.rounds][:4] == [2, 2, 1, 0]
    assert [record.round for record in engine.rounds] == list(range(len(engine.rounds)))
    for record in engine.rounds:
        assert min(record.verify_us, record.draft_us, record.other_us) >= 0
    by_round = {record.round: record for record in engine.rounds}
    for step in output.steps:
        record = by_round[step.round]
        assert (step.verify_us, step.draft_us, step.other_us) == (
            record.verify_us,
            record.draft_us,
            record.other_us,
        )
    assert 0 < output.first_token_us <= output.total_us


def test_preempted_request_emits_nothing_twice() -> None:
    config = EngineConfig(max_batch=2, prefill_chunk=4, num_pages=8)
    engine = scripted_engine(3, config=config)
    sampling = SamplingParams(max_new_tokens=20, ignore_eos=True)
    requests = [Request(request_id=name, prompt=PROMPT, sampling=sampling) for name in "ab"]
    outputs = run_checked(engine, requests)
    assert outputs["a"].num_preemptions == 0
    assert outputs["b"].num_preemptions > 0
    expected = (*SCRIPT[2:], *[SCRIPT[-1]] * 2)
    for output in outputs.values():
        assert output.output_ids == expected
        assert 1 + sum(step.emitted for step in output.steps) == len(expected)


def test_engine_takes_more_requests_after_it_ran_dry() -> None:
    engine = scripted_engine(2)
    first = run_one(engine)
    assert engine.run_round() is None
    engine.add(Request(request_id="b", prompt=PROMPT))
    assert engine.run()[0].output_ids == first.output_ids


class BadDrafter(PlainDrafter):
    """Returns a fixed proposal."""

    num_draft_tokens = 2

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal

    def propose(self, inputs: DraftInput) -> Proposal:
        return self._proposal


@pytest.mark.parametrize(
    ("tokens", "count", "message"),
    [
        ([[1, 2, 3]], 3, "proposed 3 tokens .* at most 2"),
        ([[1]], 2, "proposed 2 tokens .1 given."),
        ([[1, 13]], 2, r"must lie in 0\.\.12"),
        ([[1, -1]], 2, r"must lie in 0\.\.12"),
        ([[1, 2], [1, 2]], 2, "proposed for 2 requests, the pass has 1"),
    ],
)
def test_proposal_that_breaks_the_contract_is_refused(tokens, count, message) -> None:
    tokens_BK = torch.tensor(tokens)
    proposal = Proposal(tokens_BK=tokens_BK, num_drafted_B=torch.full((len(tokens),), count))
    engine = Engine(TableTarget(), BadDrafter(proposal), GreedyVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1, 2)))
    with pytest.raises(MetadataError, match=message):
        engine.run_round()


def test_tree_proposal_is_refused_by_name() -> None:
    tokens_BK = torch.tensor([[1, 2]])
    proposal = Proposal(tokens_BK=tokens_BK, num_drafted_B=torch.tensor([2]), parents_BK=torch.tensor([[-1, -1]]))
    engine = Engine(TableTarget(), BadDrafter(proposal), GreedyVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1, 2)))
    with pytest.raises(UnsupportedError, match="parents_BK"):
        engine.run_round()


def test_seeded_request_gives_the_same_text_whatever_shares_its_batch() -> None:
    def text_of(others: int) -> tuple[int, ...]:
        engine = Engine(TableTarget(), PlainDrafter(), GumbelVerifier(), EngineConfig(max_batch=4))
        sampling = SamplingParams(seed=5, temperature=1.0, max_new_tokens=20)
        requests = [Request(request_id=f"x{i}", prompt=(i, 2), sampling=sampling) for i in range(others)]
        requests.append(Request(request_id=f"mine-{others}", prompt=(3, 4), sampling=sampling))
        return run_checked(engine, requests)[f"mine-{others}"].output_ids

    assert text_of(0) == text_of(2) == text_of(5)


def test_unseeded_requests_do_not_share_a_stream() -> None:
    engine = Engine(TableTarget(), PlainDrafter(), GumbelVerifier(), EngineConfig(max_batch=2))
    sampling = SamplingParams(temperature=1.0, max_new_tokens=30)
    for name, turn in (("a", 0), ("b", 0), ("a", 1)):
        engine.add(Request(request_id=name, turn=turn, prompt=(3, 4), sampling=sampling))
    assert len({output.output_ids for output in engine.run()}) == 3
