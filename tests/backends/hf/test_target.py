"""HfTarget: whatever the engine schedules, its logits are those without a cache, and drafts change nothing."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.hf.draft import HfDraft
from backends.hf.target import HfPassConfig, HfTarget, RecomputeTarget
from backends.hf.vocabulary import same_ids
from drafters.draft_model import DraftModelConfig
from drafters.ngram import NgramConfig
from specdec.api import LAST_LAYER, DraftSetup, RoundLayout
from specdec.engine import EngineConfig
from specdec.errors import ConfigError, MetadataError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, WatchedDrafter
from specdec.verifiers import GreedyVerifier, GumbelVerifier

VOCABULARY = 29
DECODER_FAMILIES = ("lean_llama", "llama", "gpt2", "qwen2", "qwen3", "gpt_neox", "gemma", "mistral")
HYPOTHESIS = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def workload(num_requests: int, *, temperature: float, longest: int = 30) -> list[Request]:
    """Repetitive prompts of many lengths, so that lookup finds something."""
    requests = []
    for i in range(num_requests):
        length = 1 + (7 * i + 5) % longest
        prompt = tuple(2 + (i + j % (3 + i)) % (VOCABULARY - 2) for j in range(length))
        sampling = SamplingParams(
            temperature=temperature, seed=i, max_new_tokens=12 + 5 * (i % 3), ignore_eos=i % 2 == 0
        )
        requests.append(Request(request_id=f"r{i}", prompt=prompt, sampling=sampling))
    return requests


def ids(outputs) -> dict[str, tuple[int, ...]]:
    return {name: output.output_ids for name, output in outputs.items()}


def drafter_of(kind: str, target, model, draft_model, max_batch: int):
    config = NgramConfig(num_draft_tokens=4) if kind == "ngram" else DraftModelConfig(num_draft_tokens=3)
    vocabulary = same_ids(target_size=model.vocab_size, draft_size=draft_model.vocab_size)
    setup = DraftSetup(
        device=target.device,
        vocab_size=target.vocab_size,
        max_batch=max_batch,
        max_context=target.max_context,
        draft_backend=HfDraft(draft_model, vocabulary, max_rows=max_batch),
    )
    return WatchedDrafter(config.build(setup), target.vocab_size)


@HYPOTHESIS
@given(
    family=st.sampled_from(DECODER_FAMILIES),
    prompts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=40), min_size=1, max_size=5),
    max_batch=st.integers(1, 3),
    chunk=st.integers(1, 24),
    num_pages=st.sampled_from([None, 8, 9]),
    num_drafts=st.integers(1, 6),
)
def test_logits_are_those_without_a_cache(
    tiny, compared, decoded, family, prompts, max_batch, chunk, num_pages, num_drafts
) -> None:
    model = tiny(family)
    target = compared(model, HfPassConfig(max_rows=max_batch))
    drafter = NgramConfig(num_draft_tokens=num_drafts).build(
        DraftSetup(device=target.device, vocab_size=VOCABULARY, max_batch=max_batch, max_context=96)
    )
    sampling = SamplingParams(temperature=0.0, max_new_tokens=14, ignore_eos=True)
    requests = [Request(request_id=str(i), prompt=tuple(p), sampling=sampling) for i, p in enumerate(prompts)]
    config = EngineConfig(max_batch=max_batch, prefill_chunk=chunk, num_pages=num_pages)
    outputs = decoded(target, drafter, GreedyVerifier(), config, requests)
    assert all(len(output.output_ids) == 14 for output in outputs.values())


@pytest.mark.parametrize("verifier", [GreedyVerifier(), GumbelVerifier()], ids=lambda v: v.name)
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
@pytest.mark.parametrize("family", ["lean_llama", "gpt2"])
def test_drafts_do_not_change_the_text(tiny, decoded, family, kind, verifier) -> None:
    model, draft_model = tiny(family), tiny("llama", seed=1)
    temperature = 0.0 if verifier.name == "greedy" else 0.9
    requests = workload(5, temperature=temperature)
    plain = decoded(HfTarget(model, HfPassConfig(max_rows=1)), PlainDrafter(), verifier, EngineConfig(), requests)
    for max_batch, num_pages in ((1, None), (2, None), (3, 6)):
        target = HfTarget(model, HfPassConfig(max_rows=max_batch))
        config = EngineConfig(max_batch=max_batch, prefill_chunk=7, num_pages=num_pages)
        drafter = drafter_of(kind, target, model, draft_model, max_batch)
        found = decoded(target, drafter, verifier, config, requests)
        assert ids(found) == ids(plain)
        if num_pages is not None:
            assert any(output.num_preemptions for output in found.values())


def test_a_model_drafting_for_itself_is_always_accepted(tiny, decoded) -> None:
    model = tiny("qwen3")
    target = HfTarget(model, HfPassConfig(max_rows=2))
    drafter = drafter_of("draft_model", target, model, model, 2)
    found = decoded(target, drafter, GreedyVerifier(), EngineConfig(max_batch=2), workload(4, temperature=0.0))
    steps = [step for output in found.values() for step in output.steps]
    assert sum(step.proposed for step in steps) == sum(step.accepted for step in steps) > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fixed_shapes_give_the_same_bits_whatever_shares_a_pass(tiny, decoded, dtype) -> None:
    model = tiny("llama", dtype=dtype)
    requests = workload(3, temperature=0.0, longest=60)
    texts = []
    for max_batch, num_drafts in ((1, 0), (1, 7), (2, 3)):
        target = HfTarget(model, HfPassConfig(max_rows=max_batch, fixed_rows=8))
        config = EngineConfig(max_batch=max_batch, batch_invariant=True, fixed_rows=8)
        setup = DraftSetup(device=target.device, vocab_size=VOCABULARY, max_batch=max_batch, max_context=96)
        drafter = NgramConfig(num_draft_tokens=num_drafts).build(setup) if num_drafts else PlainDrafter()
        texts.append(ids(decoded(target, drafter, GreedyVerifier(), config, requests)))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "lean_llama"])
def test_fixed_shapes_make_a_row_a_function_of_its_text(tiny, family, dtype) -> None:
    model = tiny(family, dtype=dtype)
    tokens = torch.randint(1, VOCABULARY, (90,))
    found = []
    for widths in ([1] * 90, [8] * 11 + [2], [3] * 30):
        target = HfTarget(model, HfPassConfig(max_rows=1, fixed_rows=8))
        start, rows = 0, []
        for width in widths:
            layout = RoundLayout(
                rows=(0,), start_positions=(start,), query_lens=(width,), logit_rows=tuple(range(width))
            )
            rows.append(target.forward(layout, tokens[start : start + width], {}).logits_RV)
            start += width
        found.append(torch.cat(rows))
    assert found[0].equal(found[1]) and found[0].equal(found[2])


@pytest.mark.parametrize("family", ["mamba", "sliding"])
def test_recompute_serves_models_that_cannot_go_back(tiny, decoded, family) -> None:
    model = tiny(family)
    requests = workload(3, temperature=0.0)
    plain = decoded(RecomputeTarget(model), PlainDrafter(), GreedyVerifier(), EngineConfig(), requests)
    target = RecomputeTarget(model)
    setup = DraftSetup(device=target.device, vocab_size=VOCABULARY, max_batch=2, max_context=96)
    config = EngineConfig(max_batch=2, prefill_chunk=9)
    drafter = NgramConfig(num_draft_tokens=3).build(setup)
    assert ids(decoded(target, drafter, GreedyVerifier(), config, requests)) == ids(plain)


@pytest.mark.parametrize("family", ["llama", "lean_llama", "gpt2"])
def test_hidden_states_are_those_of_the_asked_layers_in_packed_order(tiny, family) -> None:
    model = tiny(family)
    target = HfTarget(model, HfPassConfig(max_rows=3))
    texts = torch.randint(1, VOCABULARY, (3, 9))
    layout = RoundLayout(rows=(1, 2, 0), start_positions=(0, 0, 0), query_lens=(6, 2, 3), num_prefill_reqs=1)
    packed_T = torch.cat([texts[0, :6], texts[1, :2], texts[2, :3]])
    output = target.forward(layout, packed_T, {}, hidden_layers=(LAST_LAYER, 0))
    start = 0
    for text, length in zip(texts, layout.query_lens, strict=True):
        states = model.model(text[None, :length], output_hidden_states=True).hidden_states
        expected = torch.cat([states[-1][0], states[1][0]], dim=-1)
        torch.testing.assert_close(output.hidden_TD[start : start + length], expected, atol=1e-5, rtol=1e-5)
        start += length
    with pytest.raises(ConfigError, match="hidden layers of .* are 0..1"):
        target.forward(layout, packed_T, {}, hidden_layers=(2,))


def test_a_gap_in_a_text_is_refused(tiny) -> None:
    target = HfTarget(tiny("llama"), HfPassConfig(max_rows=1))
    layout = RoundLayout(rows=(0,), start_positions=(3,), query_lens=(1,))
    with pytest.raises(MetadataError, match="row 0 continues at position 3, 0 are cached"):
        target.forward(layout, torch.tensor([1]), {})


@pytest.mark.parametrize("family", ["llama", "lean_llama"])
def test_a_growing_text_is_attended_without_a_plan_for_each_length(family: str, tiny, decoded, monkeypatch) -> None:
    allowed: list[bool] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    target = HfTarget(tiny(family), HfPassConfig(max_rows=1))
    decoded(target, PlainDrafter(), GreedyVerifier(), EngineConfig(), workload(1, temperature=0.0))
    assert allowed and not any(allowed)
