"""Probabilities of drafted tokens in step rows: those of table targets and drafts, in every kind of round."""

from collections.abc import Sequence

import pytest
import torch

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from specdec.api import (
    Coupling,
    Drafter,
    DrafterConfig,
    DrafterNeeds,
    DraftInput,
    DraftSetup,
    Proposal,
    SiblingDraws,
    Verifier,
)
from specdec.certify.tables import BIGRAM
from specdec.engine import Engine, EngineConfig
from specdec.request import Request, RequestOutput
from specdec.rule_verifiers import BlockVerifier
from specdec.sampling_params import SamplingParams
from specdec.sibling_verifier import SiblingVerifier
from specdec.testing import BigramTarget, LawDraft
from specdec.verifiers import GumbelVerifier, RejectionVerifier

V = BIGRAM.target.vocab_size
TARGET, DRAFT = (
    [[float(x) for x in pair.law((token,))] for token in range(V)] for pair in (BIGRAM.target, BIGRAM.draft)
)


class FixedTrees:
    """Proposes the same tree for everyone, children before their parent, with laws that only have to be laws."""

    num_draft_tokens = 3
    needs = DrafterNeeds(trees=True)

    def propose(self, inputs: DraftInput) -> Proposal:
        num_reqs = len(inputs.wanted_B)
        return Proposal(
            tokens_BK=torch.tensor([[2, 0, 1]]).expand(num_reqs, -1),
            num_drafted_B=torch.tensor([3 * (most >= 3) for most in inputs.max_draft_B]),
            probs_BKV=torch.tensor([[[0.25, 0.25, 0.5], [0.125, 0.375, 0.5], [0.125, 0.375, 0.5]]]).expand(
                num_reqs, -1, -1
            ),
            parents_BK=torch.tensor([[1, -1, -1]]).expand(num_reqs, -1),
            sibling_draws=SiblingDraws.WITH_REPLACEMENT,
        )

    def forget(self, rows: Sequence[int]) -> None:
        pass


def decoded(
    drafter: DrafterConfig | Drafter, verifier: Verifier, *, temperature: float = 1.0, **config: object
) -> list[RequestOutput]:
    target = BigramTarget(BIGRAM.target.rows)
    backend = LawDraft(target, BIGRAM.draft)
    setup = DraftSetup(
        device=target.device, vocab_size=V, max_batch=2, max_context=target.max_context, draft_backend=backend
    )
    live = drafter if isinstance(drafter, Drafter) else drafter.build(setup)
    groups = backend.cache_groups if live.needs.draft_backend else ()
    settings = EngineConfig(**{"max_batch": 2, "record_probs": True, **config})
    engine = Engine(target, live, verifier, settings, draft_groups=groups)
    for i in range(3):
        sampling = SamplingParams(temperature=temperature, max_new_tokens=9 + 4 * i, seed=i)
        engine.add(Request(request_id=str(i), prompt=(i, 1, 2, 1, 2), sampling=sampling))
    return engine.run()


def expected_of(output: RequestOutput, laws: list[list[float]]) -> list[object]:
    """Of every step that verified something, what the law after the token before each draft gives it, about."""
    known, found = (*output.prompt_ids, *output.output_ids), []
    for step in output.steps:
        parents = step.parents or tuple(range(-1, len(step.draft_ids) - 1))
        newest = known[step.seq_len - 1]
        before = [newest if parent < 0 else step.draft_ids[parent] for parent in parents]
        if before:
            own = tuple(laws[a][b] for a, b in zip(before, step.draft_ids, strict=True))
            found.append(pytest.approx(own, abs=1e-5))
    return found


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier(), GumbelVerifier()], ids=lambda v: v.name)
def test_rows_have_both_probabilities_of_every_drafted_token(verifier: Verifier, graphs: bool) -> None:
    outputs = decoded(NextnConfig(num_draft_tokens=3), verifier, graphs=graphs)
    assert sum(len(step.draft_ids) for output in outputs for step in output.steps) > 20
    for output in outputs:
        drafted = [step for step in output.steps if step.draft_ids]
        assert [step.target_probs for step in drafted] == expected_of(output, TARGET)
        # A draft that shares the target's noise reports no law.
        is_shared = verifier.coupling is Coupling.SHARED
        known = [None] * len(drafted) if is_shared else expected_of(output, DRAFT)
        assert [step.draft_probs for step in drafted] == known


def test_point_masses_have_no_probability_of_the_draft_and_greedy_targets_give_all_or_nothing() -> None:
    outputs = decoded(NgramConfig(), GumbelVerifier(), temperature=0)
    drafted = [step for output in outputs for step in output.steps if step.draft_ids]
    assert drafted and all(step.draft_probs is None for step in drafted)
    for step in drafted:
        kept = [1.0] * step.accepted + [0.0] * (step.accepted < step.proposed)
        assert list(step.target_probs)[: len(kept)] == kept


@pytest.mark.parametrize("verifier", [SiblingVerifier(), GumbelVerifier()], ids=lambda v: v.name)
def test_nodes_of_a_tree_have_the_laws_after_their_parents(verifier: Verifier) -> None:
    outputs = decoded(FixedTrees(), verifier)
    steps = [step for output in outputs for step in output.steps if step.parents]
    assert steps and {step.draft_ids for step in steps} == {(0, 1, 2)} and {s.parents for s in steps} == {(-1, -1, 0)}
    assert {step.draft_probs for step in steps} == {(0.125, 0.375, 0.5)}
    for output in outputs:
        assert [step.target_probs for step in output.steps if step.parents] == expected_of(output, TARGET)


def test_nobody_asked_nothing_recorded() -> None:
    outputs = decoded(NextnConfig(num_draft_tokens=3), RejectionVerifier(), record_probs=False)
    steps = [step for output in outputs for step in output.steps]
    assert {(step.draft_probs, step.target_probs) for step in steps} == {(None, None)}
