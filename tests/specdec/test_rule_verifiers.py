"""Block, typical and threshold verifiers: settings, point masses, and what the engine does with them."""

from itertools import pairwise

import pytest
import torch

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from specdec.api import Coupling, DrafterConfig, DraftSetup, Proposal
from specdec.engine import Engine, EngineConfig
from specdec.errors import ConfigError, UnsupportedError
from specdec.noise import VocabularyNoise
from specdec.request import Request
from specdec.rule_verifiers import (
    BlockVerifierConfig,
    ThresholdVerifierConfig,
    TypicalVerifierConfig,
)
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, TableDraft, TableTarget, run_checked
from specdec.verifiers import RejectionVerifierConfig

V = 8
CONFIGS = (
    BlockVerifierConfig(),
    TypicalVerifierConfig(),
    ThresholdVerifierConfig(threshold=0.2),
    RejectionVerifierConfig(),
)


def sampling_of(*, temperature: float, tokens: list[int], stream: int = 5, batch: int = 1) -> BatchSampling:
    params = SamplingParams(temperature=temperature)
    requests = [SamplingRequest(params=params, stream=stream + b, tokens=tokens, num_prompt=1) for b in range(batch)]
    return BatchSampling(requests, noise=VocabularyNoise(V), coupling=Coupling.INDEPENDENT)


def proposal_of(drafted: list[int], num_drafted: int, probs_KV: torch.Tensor | None = None) -> Proposal:
    return Proposal(
        tokens_BK=torch.tensor([drafted]),
        num_drafted_B=torch.tensor([num_drafted]),
        probs_BKV=None if probs_KV is None else probs_KV[None],
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_a_draft_that_cannot_come_is_rejected_and_a_certain_one_accepted(config) -> None:
    logits = torch.full((1, 4, V), float("-inf"))
    logits[0, :, 3] = 0
    for temperature in (0.0, 1.0):
        for drafted, num_drafted, kept in (([3, 3, 2], 3, 2), ([3, 3, 3], 3, 3), ([3, 3, 3], 2, 2), ([0, 3, 3], 3, 0)):
            sampling = sampling_of(temperature=temperature, tokens=[1])
            proposal = proposal_of(drafted, num_drafted)
            verdict = config.build().judge(logits, proposal, sampling, torch.tensor([1]))
            assert verdict.num_accepted_B.item() == kept
            assert verdict.tokens_BN[0, : kept + 1].tolist() == [3] * (kept + 1)


@pytest.mark.parametrize("config", CONFIGS)
def test_padding_rows_are_not_read(config) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 4, V, generator=generator)
    probs = torch.rand(3, V, generator=generator)
    probs /= probs.sum(-1, keepdim=True)
    for num_drafted in range(1, 4):
        for stream in range(30):
            sampling = sampling_of(temperature=1.0, tokens=[1], stream=stream)
            found = []
            for filler in (0, 7):
                dirty = logits.clone()
                dirty[:, num_drafted + 1 :] = filler
                drafted = [2, 1, 4][:num_drafted] + [filler] * (3 - num_drafted)
                laws = probs.clone()
                laws[num_drafted:] = 1 / V
                proposal = proposal_of(drafted, num_drafted, laws if filler else probs)
                verdict = config.build().judge(dirty, proposal, sampling, torch.tensor([1]))
                count = verdict.num_accepted_B.item()
                found.append((count, verdict.tokens_BN[0, : count + 1].tolist()))
            assert found[0] == found[1]


def test_trees_are_refused_by_name() -> None:
    proposal = Proposal(tokens_BK=torch.tensor([[1]]), num_drafted_B=torch.tensor([1]), parents_BK=torch.tensor([[-1]]))
    with pytest.raises(UnsupportedError, match="verifier block judges chains"):
        sampling = sampling_of(temperature=1.0, tokens=[1])
        BlockVerifierConfig().build().judge(torch.zeros(1, 2, V), proposal, sampling, torch.tensor([1]))


def test_lossy_rules_say_so_and_exact_ones_do_not() -> None:
    assert [config.build().lossless for config in CONFIGS] == [True, False, False, True]
    assert BlockVerifierConfig().build().lossless_how == "rule"


@pytest.mark.parametrize(
    "make", [lambda: TypicalVerifierConfig(epsilon=1.5), lambda: ThresholdVerifierConfig(threshold=-1)]
)
def test_settings_out_of_range_are_refused(make) -> None:
    with pytest.raises(ConfigError, match=r"conf: verifier\."):
        make()


def test_a_threshold_decides_by_the_targets_probability_alone() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log().expand(1, 2, 4)
    params = SamplingParams(temperature=1.0)
    request = SamplingRequest(params=params, stream=1, tokens=[1], num_prompt=1)
    sampling = BatchSampling([request], noise=VocabularyNoise(4), coupling=Coupling.INDEPENDENT)
    for threshold, kept in ((0.2, [1, 1, 0, 0]), (0.12, [1, 1, 1, 0]), (0.0, [1, 1, 1, 1]), (1.0, [0, 0, 0, 0])):
        verifier = ThresholdVerifierConfig(threshold=threshold).build()
        found = [verifier.judge(logits, proposal_of([t], 1), sampling, torch.tensor([1])) for t in range(4)]
        assert [verdict.num_accepted_B.item() for verdict in found] == kept


def test_draft_noise_of_a_position_is_new_in_every_round() -> None:
    """Block verification looks at drafts beyond the accepted ones, so a later round must draw them afresh."""
    tokens = [1]
    sampling = sampling_of(temperature=1.0, tokens=tokens, batch=400)
    draws = []
    for _ in range(4):
        draws.append(sampling.draw(torch.zeros(400, V), torch.full((400,), 6)).tokens_B)
        tokens.append(0)
    for earlier, later in pairwise(draws):
        agree = (earlier == later).double().mean().item()
        assert abs(agree - 1 / V) < 4 * (1 / V / 400) ** 0.5


def test_draft_noise_of_a_round_does_not_depend_on_what_shares_the_batch() -> None:
    logits = torch.zeros(1, V)
    alone = [sampling_of(temperature=1.0, tokens=[1], stream=s).draw(logits, torch.tensor([6])) for s in range(5, 9)]
    together = sampling_of(temperature=1.0, tokens=[1], batch=4).draw(logits.expand(4, V), torch.full((4,), 6))
    assert torch.cat([draft.tokens_B for draft in alone]).equal(together.tokens_B)


@pytest.mark.parametrize("config", [BlockVerifierConfig(), RejectionVerifierConfig()])
def test_rounds_with_real_noise_follow_the_targets_law(config) -> None:
    """Two tokens of many requests; with draft noise that a later round repeats, block verification is far off."""
    num_requests, target, draft = 40_000, torch.tensor([1 / 2, 1 / 3, 1 / 6]), torch.tensor([1 / 4, 1 / 4, 1 / 2])
    known = [[0] for _ in range(num_requests)]
    params = SamplingParams(temperature=1.0)
    requests = [
        SamplingRequest(params=params, stream=b * b, tokens=known[b], num_prompt=1) for b in range(num_requests)
    ]
    sampling = BatchSampling(requests, noise=VocabularyNoise(3), coupling=Coupling.INDEPENDENT)
    logits_BNV = target.log().expand(num_requests, 3, 3)
    while min(map(len, known)) < 3:
        positions_B = torch.tensor([len(tokens) for tokens in known])
        drafts = [sampling.draw(draft.log().expand(num_requests, 3), positions_B + k) for k in range(2)]
        proposal = Proposal(
            tokens_BK=torch.stack([d.tokens_B for d in drafts], 1),
            num_drafted_B=torch.full((num_requests,), 2),
            probs_BKV=torch.stack([d.probs_BV for d in drafts], 1),
        )
        verdict = config.build().judge(logits_BNV, proposal, sampling, positions_B)
        lines = zip(known, verdict.tokens_BN.tolist(), verdict.num_accepted_B.tolist(), strict=True)
        for tokens, emitted, accepted in lines:
            tokens.extend(emitted[: accepted + 1])
    outputs = torch.tensor([tokens[1:3] for tokens in known])
    counts = torch.bincount(outputs @ torch.tensor([3, 1]), minlength=9)
    wanted = num_requests * torch.outer(target, target).flatten()
    chi2 = ((counts - wanted) ** 2 / wanted).sum()
    assert chi2 < 28  # five standard deviations above the 8 degrees of freedom


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("drafter", [NgramConfig(num_draft_tokens=3), NextnConfig(num_draft_tokens=3)])
def test_greedy_requests_of_a_mixed_batch_are_decoded_as_without_a_draft(config, drafter: DrafterConfig) -> None:
    def decode(drafter_config: DrafterConfig | None) -> dict[str, tuple[int, ...]]:
        target = TableTarget(max_context=40, sharpness=3.0)
        backend = TableDraft(target)
        setup = DraftSetup(
            device=target.device, vocab_size=target.vocab_size, max_batch=4, max_context=40, draft_backend=backend
        )
        live = PlainDrafter() if drafter_config is None else drafter_config.build(setup)
        groups = backend.cache_groups if live.needs.draft_backend else ()
        engine = Engine(target, live, config.build(), EngineConfig(max_batch=4), eos_ids=(), draft_groups=groups)
        requests = [
            Request(
                request_id=str(i),
                prompt=(1 + i, 2, 3),
                sampling=SamplingParams(temperature=0.9 * (i % 2), seed=i, max_new_tokens=20),
            )
            for i in range(4)
        ]
        return {name: output.output_ids for name, output in run_checked(engine, requests).items()}

    plain, found = decode(None), decode(drafter)
    assert {name: len(ids) for name, ids in found.items()} == {name: 20 for name in plain}
    assert all(found[name] == plain[name] for name in ("0", "2"))
