"""Where outputs part from the baseline's: a toy with exact ties, whose passes of several rows break them otherwise."""

from dataclasses import dataclass, replace

import pytest
import torch

from drafters.nextn import NextnConfig
from drafters.none import NoneConfig
from experiments.build import EngineMaker
from experiments.lossless import Difference, Judgement, judge
from experiments.near_ties import Examiner, Parting, bound_text, rounding_bound
from experiments.summary import Run, summarise
from experiments.table import notes
from experiments.targets import Served
from experiments.toy import ROWS_PER_PAGE, Toy
from specdec.admission import noise_stream
from specdec.api import DrafterConfig, TargetOutput, Verifier
from specdec.engine import EngineConfig
from specdec.noise import Salt, VocabularyNoise, row_keys
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.toy import TableDraft, TableTarget
from specdec.verifiers import GreedyVerifier, GumbelVerifier

V = 13
PROMPTS = {f"p{i}": (1 + i, 2, 3) for i in range(6)}


class TiedTarget(TableTarget):
    """Logits on a coarse grid, and a tilt towards high ids in passes of several rows of one request.

    tilt  added per id: 3e-7 is a few units in the last place, 0.25 is no rounding
    """

    tilt = 3e-7

    def forward(self, layout, tokens_T, tables, *, hidden_layers=()) -> TargetOutput:
        output = super().forward(layout, tokens_T, tables, hidden_layers=hidden_layers)
        logits_RV = output.logits_RV.round()
        if 1 < len(layout.logit_rows):
            logits_RV = logits_RV + self.tilt * torch.arange(V)
        return replace(output, logits_RV=logits_RV)


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedToy(Toy):
    """The toy over such a target."""

    tilt: float = TiedTarget.tilt

    def _target(self, num_pages: int = 1) -> TableTarget:
        target = TiedTarget(
            rows_per_page=ROWS_PER_PAGE, num_rows=num_pages * ROWS_PER_PAGE, vocab_size=V, history_weight=0.5
        )
        target.tilt = self.tilt
        return target

    def serve(self, num_pages, *, max_context, max_batch) -> Served:
        target = self._target(max(num_pages.values()))
        return Served(target=target, draft_backend=TableDraft(target))


def maker_of(drafter: DrafterConfig, verifier: Verifier, tilt: float) -> EngineMaker:
    toy = TiedToy(vocab_size=V, eos_ids=(), max_context=96, tilt=tilt)
    return EngineMaker(toy, drafter, verifier, EngineConfig(max_batch=1, seed=3))


def outputs_of(make: EngineMaker, params: SamplingParams) -> list[RequestOutput]:
    engine = make()
    for name, prompt in PROMPTS.items():
        engine.add(Request(request_id=name, prompt=prompt, sampling=params))
    return engine.run()


def examined(
    verifier: Verifier, params: SamplingParams, tilt: float
) -> tuple[tuple[RequestOutput, ...], Judgement, tuple[Parting, ...]]:
    plain = outputs_of(maker_of(NoneConfig(), verifier, tilt), params)
    make = maker_of(NextnConfig(num_draft_tokens=3), verifier, tilt)
    outputs = tuple(outputs_of(make, params))
    judgement = judge(verifier, outputs, {(o.request_id, o.turn): (o.prompt_ids, o.output_ids) for o in plain})
    examiner = Examiner(
        make_engine=make.plain,
        verifier=verifier,
        sampling=dict.fromkeys(PROMPTS, params),
        eos_ids=(),
        run_seed=3,
        dtype=torch.float32,
    )
    assert judgement.differences is not None
    return outputs, judgement, examiner.examine(outputs, judgement.differences)


def test_ties_that_passes_break_otherwise_are_named_as_near_ties() -> None:
    outputs, judgement, partings = examined(GreedyVerifier(), SamplingParams(max_new_tokens=24, temperature=0), 3e-7)
    assert judgement.lossless is False
    assert judgement.differences and len(partings) == len(judgement.differences)
    for parting in partings:
        assert parting.near_tie and parting.gap == 0.0 and not parting.drawn
        assert parting.logits[0] == parting.logits[1]
        ours, theirs = parting.ids
        assert str(parting) == (
            f"{parting.request_id} turn 0, token {parting.token}: {ours} instead of {theirs}, a near tie "
            f"(logits {parting.logits[0]:.6g} and {parting.logits[1]:.6g}, gap 0.0)"
        )


def test_a_difference_that_rounding_does_not_explain_is_no_near_tie() -> None:
    _, _, partings = examined(GreedyVerifier(), SamplingParams(max_new_tokens=24, temperature=0), 0.3)
    far = [parting for parting in partings if not parting.near_tie]
    assert far and all(parting.gap is not None and parting.gap >= 1.0 for parting in far)
    assert "no near tie" in str(far[0]) and "rounding explains" in str(far[0])


def test_under_a_temperature_the_perturbed_scores_are_compared() -> None:
    params = SamplingParams(max_new_tokens=40, temperature=0.7)
    _, judgement, partings = examined(GumbelVerifier(), params, 0.3)
    assert judgement.differences and len(partings) == len(judgement.differences)
    for parting in partings:
        assert parting.drawn and "perturbed scores" in str(parting)
        request = Request(request_id=parting.request_id, prompt=PROMPTS[parting.request_id], sampling=params)
        position = torch.tensor(len(request.prompt) + parting.token)
        key = row_keys(torch.tensor(noise_stream(request, 3)), position, Salt.TARGET)
        arrivals_V = VocabularyNoise(V).exponentials(key)
        for token, logit, score in zip(parting.ids, parting.logits, parting.scores, strict=True):
            assert logit is not None and score is not None
            assert score == pytest.approx(logit / 0.7 - arrivals_V[token].log().item(), rel=1e-5)
        # The plain pass draws the baseline's token.
        assert parting.scores[1] is not None and parting.scores[0] is not None
        assert parting.gap == pytest.approx(parting.scores[1] - parting.scores[0], abs=1e-5)


def test_penalties_count_the_output_before_the_difference() -> None:
    params = SamplingParams(max_new_tokens=24, temperature=0, presence_penalty=1.0)
    _, judgement, partings = examined(GreedyVerifier(), params, 3e-7)
    assert judgement.differences and all(parting.near_tie for parting in partings)


def test_equal_outputs_and_other_differences_cost_no_pass() -> None:
    def refuse(_: Verifier):
        raise AssertionError("no engine is needed")

    examiner = Examiner(
        make_engine=refuse, verifier=GreedyVerifier(), sampling={}, eos_ids=(), run_seed=0, dtype=torch.float32
    )
    assert examiner.examine([], ()) == ()
    assert examiner.examine([], [Difference(request_id="a", turn=0, what="the prompts differ")]) == ()


@pytest.mark.parametrize(
    ("largest", "dtype", "bound"),
    [
        (7.8125, torch.bfloat16, 2 * 2**-5),
        (8.0, torch.bfloat16, 2 * 2**-4),
        (1.5, torch.float32, 32 * 2**-23),
        (0.0, torch.float32, 32 * 2**-23),
        (float("inf"), torch.bfloat16, 2 * 2**-7),
    ],
)
def test_bound_is_in_units_of_the_last_place(largest: float, dtype: torch.dtype, bound: float) -> None:
    assert rounding_bound(largest, dtype) == bound


def test_summary_has_no_count_where_nothing_was_compared() -> None:
    make = maker_of(NoneConfig(), GreedyVerifier(), 3e-7)
    run = Run(
        mode={},
        drafter={},
        rows=(),
        outputs=(),
        execution=make().execution,
        timings=(),
        num_skipped_turns=0,
        repeats_agree=True,
        judgement=Judgement(lossless=None, how="no baseline to compare with"),
    )
    summary = summarise(run, None)
    assert summary["near_ties"] is summary["different_outputs"] is None and summary["partings"] == []


def test_summary_counts_and_the_notes_show_them() -> None:
    outputs, judgement, partings = examined(GreedyVerifier(), SamplingParams(max_new_tokens=24, temperature=0), 3e-7)
    make = maker_of(NoneConfig(), GreedyVerifier(), 3e-7)
    run = Run(
        mode={},
        drafter={},
        rows=tuple(row for output in outputs for row in output.steps),
        outputs=outputs,
        execution=make().execution,
        timings=(),
        num_skipped_turns=0,
        repeats_agree=True,
        judgement=judgement,
        partings=partings,
    )
    summary = summarise(run, None)
    assert summary["lossless"] is False
    assert summary["near_ties"] == summary["different_outputs"] == len(partings)
    assert summary["near_tie_bound"] == bound_text(torch.float32)
    assert [each["text"] for each in summary["partings"]] == [str(parting) for parting in partings]
    said = "\n".join(notes(summary))
    assert str(partings[0]) in said and f"near ties: {len(partings)} of {len(partings)}" in said
