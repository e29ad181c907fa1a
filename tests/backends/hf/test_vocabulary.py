"""VocabularyMap: ids go to the draft and logits come back; what has no counterpart is never drafted."""

import pytest
import torch

from backends.hf.draft import HfDraft, shared_prefix
from backends.hf.target import HfPassConfig, HfTarget
from backends.hf.vocabulary import map_by_spelling, same_ids
from drafters.draft_model import DraftModelConfig
from specdec.api import DraftSetup
from specdec.engine import EngineConfig
from specdec.errors import ConfigError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, WatchedDrafter, check_drafter
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier


def test_spelling_ignores_how_a_space_is_written() -> None:
    target = {"Ġthe": 0, "cat": 1, "<eos>": 2, "Ġdog": 3}
    draft = {"cat": 0, "▁the": 1, "Ġdog": 9}
    found = map_by_spelling(target, draft, target_size=5, draft_size=4, filler_id=3)
    assert found.to_draft_V.tolist() == [1, 0, -1, -1, -1]
    assert found.num_shared == 2
    assert found.ids(torch.tensor([0, 1, 2, 3])).tolist() == [1, 0, 3, 3]
    logits_BV = found.logits(torch.tensor([[5.0, 6.0, 7.0, 8.0]]))
    assert logits_BV.tolist() == [[6.0, 5.0, -torch.inf, -torch.inf, -torch.inf]]


def test_padded_vocabularies_share_the_ids_that_both_have() -> None:
    assert same_ids(target_size=5, draft_size=3).to_draft_V.tolist() == [0, 1, 2, -1, -1]
    assert same_ids(target_size=2, draft_size=3).logits(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[1.0, 2.0]]


def test_vocabularies_without_a_common_token_are_refused() -> None:
    with pytest.raises(ConfigError, match="share no token"):
        map_by_spelling({"a": 0}, {"b": 0}, target_size=1, draft_size=1)


@pytest.mark.parametrize(("old", "new", "length"), [([], [1], 0), ([1, 2, 3], [1, 2], 2), ([1, 5, 3], [1, 2, 3], 1)])
def test_shared_prefix(old, new, length) -> None:
    assert shared_prefix(old, new) == length


@pytest.mark.parametrize("verifier", [GreedyVerifier(), GumbelVerifier(), RejectionVerifier()], ids=lambda v: v.name)
def test_a_draft_with_a_third_of_the_vocabulary_is_exact_and_used(tiny, decoded, verifier) -> None:
    model = tiny("llama")
    spelled = {str(i): i for i in range(29)}
    shared = map_by_spelling(spelled, {str(3 * i): i for i in range(10)}, target_size=29, draft_size=29, filler_id=28)
    temperature = 0.0 if verifier.name == "greedy" else 0.8
    sampling = SamplingParams(temperature=temperature, max_new_tokens=30, seed=3, ignore_eos=True)
    requests = [Request(request_id=str(i), prompt=(1 + i, 7, 7), sampling=sampling) for i in range(3)]
    plain = decoded(HfTarget(model, HfPassConfig(max_rows=1)), PlainDrafter(), verifier, EngineConfig(), requests)
    target = HfTarget(model, HfPassConfig(max_rows=3))
    setup = DraftSetup(
        device=target.device,
        vocab_size=29,
        max_batch=3,
        max_context=96,
        draft_backend=HfDraft(tiny("gpt2"), shared, max_rows=3),
    )
    drafter = WatchedDrafter(DraftModelConfig(num_draft_tokens=3).build(setup), 29)
    found = decoded(target, drafter, verifier, EngineConfig(max_batch=3), requests)
    steps = [step for output in found.values() for step in output.steps]
    assert sum(step.proposed for step in steps) > 20
    if verifier.name != "rejection":
        assert {k: v.output_ids for k, v in found.items()} == {k: v.output_ids for k, v in plain.items()}


class OverTinyModel:
    """The drafter's configuration, built over a model of the toy vocabulary instead of the toy's draft."""

    num_draft_tokens = 3
    config = DraftModelConfig(num_draft_tokens=3)
    needs = config.needs

    def __init__(self, model) -> None:
        self._model = model

    def build(self, setup: DraftSetup):
        vocabulary = same_ids(target_size=setup.vocab_size, draft_size=self._model.vocab_size)
        backend = HfDraft(self._model, vocabulary, max_rows=setup.max_batch)
        return self.config.build(
            DraftSetup(
                device=setup.device,
                vocab_size=setup.vocab_size,
                max_batch=setup.max_batch,
                max_context=setup.max_context,
                draft_backend=backend,
            )
        )


def test_draft_model_keeps_the_contract_of_drafters(tiny) -> None:
    tally = check_drafter(OverTinyModel(tiny("llama")))
    assert tally.num_drafted > 500 and tally.num_preemptions > 0
