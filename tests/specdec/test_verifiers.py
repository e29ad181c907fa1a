"""Verifiers: leading matches, laws of the whole path from draw to commit, logprobs and refusals."""

import itertools

import pytest
import torch

from specdec.api import Coupling, Proposal, TargetSampling, Verifier
from specdec.errors import UnsupportedError
from specdec.noise import VocabularyNoise, stream_key
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.sampling_params import SamplingParams
from specdec.verifiers import (
    GreedyVerifierConfig,
    GumbelVerifierConfig,
    RejectionVerifier,
    RejectionVerifierConfig,
)


def sampling_of(verifier: Verifier, num_reqs: int, vocab: int, *, logprobs: bool = False, **options) -> TargetSampling:
    params = SamplingParams(logprobs=logprobs, **options)
    requests = [
        SamplingRequest(params=params, stream=stream_key(None, request_id=str(b), run_seed=5), tokens=[0], num_prompt=1)
        for b in range(num_reqs)
    ]
    return BatchSampling(requests, noise=VocabularyNoise(vocab), coupling=verifier.coupling)


def chi2(tokens: torch.Tensor, law: torch.Tensor) -> float:
    expected = law.double() * len(tokens)
    return (((torch.bincount(tokens, minlength=len(law)) - expected) ** 2) / expected).sum().item()


@pytest.mark.parametrize("config", [GumbelVerifierConfig(), RejectionVerifierConfig()])
@pytest.mark.parametrize("greedy_draft", [False, True])
def test_committed_tokens_follow_the_target_when_drafted_by_draw(config, greedy_draft: bool) -> None:
    """The whole path: draw, judge, first and second committed token, for 40,000 requests."""
    verifier = config.build()
    num_reqs, vocab, width = 40_000, 5, 2
    generator = torch.Generator().manual_seed(2)
    target_NV = torch.randn(width + 1, vocab, generator=generator)
    draft_KV = torch.randn(width, vocab, generator=generator)
    sampling = sampling_of(verifier, num_reqs, vocab, temperature=0.9)
    positions = torch.full((num_reqs,), 3)
    draws = [
        sampling.draw(draft_KV[k].expand(num_reqs, vocab), positions + k, greedy=greedy_draft) for k in range(width)
    ]
    probs = None if draws[0].probs_BV is None else torch.stack([d.probs_BV for d in draws], 1)
    proposal = Proposal(
        tokens_BK=torch.stack([d.tokens_B for d in draws], 1),
        num_drafted_B=torch.full((num_reqs,), width),
        probs_BKV=probs,
    )
    assert (probs is None) == (greedy_draft or verifier.coupling is Coupling.SHARED)
    verdict = verifier.judge(target_NV.expand(num_reqs, -1, -1), proposal, sampling, positions)
    law_NV = (target_NV / 0.9).softmax(-1)
    # 4 degrees of freedom: 23.5 has probability 1e-4.
    assert chi2(verdict.tokens_BN[:, 0], law_NV[0]) < 23.5
    for count in (1, 2):
        reached = verdict.num_accepted_B >= count
        assert chi2(verdict.tokens_BN[reached, count], law_NV[count]) < 23.5
    first_law = (draft_KV[0] / 0.9).softmax(-1)
    if verifier.name == "rejection":
        accepted = (verdict.num_accepted_B >= 1).double().mean()
        overlap = torch.minimum(first_law, law_NV[0]).sum() if probs is not None else law_NV[0][draft_KV[0].argmax()]
        assert abs(accepted - overlap) < 4 * 0.5 / num_reqs**0.5


@pytest.mark.parametrize("config", [GumbelVerifierConfig(), RejectionVerifierConfig()])
def test_sequences_over_several_rounds_follow_the_target(config) -> None:
    """Joint law of four tokens of a chain, drafted by another chain in rounds of mixed length and acceptance."""
    verifier = config.build()
    num_reqs, vocab, width, length = 30_000, 3, 2, 4
    generator = torch.Generator().manual_seed(1)
    target_VV = torch.randn(vocab, vocab, generator=generator)
    draft_VV = target_VV + torch.randn(vocab, vocab, generator=generator)
    sampling = sampling_of(verifier, num_reqs, vocab, temperature=1.0)
    tokens, known = torch.zeros(num_reqs, length + width + 2, dtype=torch.int64), torch.ones(num_reqs).long()
    columns = torch.arange(width + 1)
    while known.min() <= length:
        chain, draws = [tokens.gather(1, known[:, None] - 1)[:, 0]], []
        for k in range(width):
            draws.append(sampling.draw(draft_VV[chain[-1]], known + k))
            chain.append(draws[-1].tokens_B)
        proposal = Proposal(
            tokens_BK=torch.stack(chain[1:], 1),
            num_drafted_B=torch.arange(num_reqs) % (width + 1),
            probs_BKV=None if draws[0].probs_BV is None else torch.stack([d.probs_BV for d in draws], 1),
        )
        verdict = verifier.judge(target_VV[torch.stack(chain, 1)], proposal, sampling, known)
        places = (known[:, None] + columns).clamp(max=tokens.shape[1] - 1)
        tokens.scatter_(1, places, verdict.tokens_BN)
        known = (known + verdict.num_accepted_B + 1).clamp(max=length + 1)
    law_VV = target_VV.softmax(-1)
    joint, code = law_VV[0], tokens[:, 1]
    for place in range(2, length + 1):
        joint, code = joint.unsqueeze(-1) * law_VV, code * vocab + tokens[:, place]
    # 80 degrees of freedom: 134 has probability 1e-4.
    assert chi2(code, joint.flatten()) < 134


def test_rejection_ignores_whatever_lies_beyond_the_drafted_tokens() -> None:
    verifier = RejectionVerifier()
    logits, probs = torch.randn(3, 4, 6), torch.rand(3, 3, 6).softmax(-1)
    drafted, num_drafted = torch.tensor([[1, 2, 3], [4, 0, 5], [2, 2, 2]]), torch.tensor([0, 1, 2])
    sampling = sampling_of(verifier, 3, 6, temperature=1.0)
    clean = verifier.judge(
        logits, Proposal(tokens_BK=drafted, num_drafted_B=num_drafted, probs_BKV=probs), sampling, torch.arange(3)
    )
    beyond = torch.arange(3) >= num_drafted[:, None]
    logits[:, 1:][beyond], probs[beyond] = float("nan"), float("nan")
    drafted = drafted.masked_fill(beyond, -1)
    dirty = verifier.judge(
        logits, Proposal(tokens_BK=drafted, num_drafted_B=num_drafted, probs_BKV=probs), sampling, torch.arange(3)
    )
    assert torch.equal(clean.num_accepted_B, dirty.num_accepted_B)
    for b, count in enumerate(clean.num_accepted_B.tolist()):
        assert torch.equal(clean.tokens_BN[b, : count + 1], dirty.tokens_BN[b, : count + 1])


def test_rejection_never_lets_one_uniform_decide_two_draws() -> None:
    """Draft draw, acceptance, correction and bonus of a position are pairwise independent."""
    verifier = RejectionVerifier()
    num_reqs, vocab = 40_000, 4
    sampling = sampling_of(verifier, num_reqs, vocab, temperature=1.0)
    positions = torch.full((num_reqs,), 7)
    flat = torch.full((num_reqs, vocab), 0.25)
    yes = torch.ones(num_reqs, dtype=torch.bool)
    draws = {
        "draft": sampling.draw(flat, positions).tokens_B,
        "acceptance": (sampling.acceptance_uniforms(positions, 1)[:, 0] * vocab).long(),
        "correction": sampling.final_draw(flat, positions, yes),
        "bonus": sampling.final_draw(flat, positions, ~yes),
    }
    for (_, a), (_, b) in itertools.combinations(draws.items(), 2):
        # 15 degrees of freedom: 44.3 has probability 1e-4.
        assert chi2(a * vocab + b, torch.full((vocab * vocab,), 1 / vocab**2)) < 44.3


def test_plain_decoding_draws_the_same_under_gumbel_and_rejection() -> None:
    logits = torch.randn(6, 1, 9)
    positions = torch.arange(6)
    tokens = [
        c.build().judge(logits, None, sampling_of(c.build(), 6, 9, temperature=1.0), positions).tokens_BN
        for c in (GumbelVerifierConfig(), RejectionVerifierConfig())
    ]
    assert torch.equal(tokens[0], tokens[1])


CONFIGS = [GreedyVerifierConfig(), GumbelVerifierConfig(), RejectionVerifierConfig()]


def one_hot_logits(choices: list[int], vocab: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([choices]), vocab).float() * 5


@pytest.mark.parametrize("config", CONFIGS)
def test_greedy_chain_golden(config) -> None:
    """Contract 9.2: candidates [23958, 1266, 9400, 61749] against [1266, 9400, 61749, 6620]."""
    verifier = config.build()
    logits = one_hot_logits([1266, 9400, 61749, 6620], 61750)
    proposal = Proposal(tokens_BK=torch.tensor([[1266, 9400, 61749]]), num_drafted_B=torch.tensor([3]))
    verdict = verifier.judge(logits, proposal, sampling_of(verifier, 1, 61750, temperature=0), torch.tensor([4]))
    assert verdict.num_accepted_B.tolist() == [3]
    assert verdict.tokens_BN.tolist() == [[1266, 9400, 61749, 6620]]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("drafted", "num_drafted", "num_accepted"),
    [
        ([1, 2, 3], 3, 3),
        ([1, 2, 4], 3, 2),
        ([0, 2, 3], 3, 0),
        ([1, 2, 3], 2, 2),
        ([1, 2, 3], 0, 0),
        ([1, -1, 99], 1, 1),
    ],
)
def test_each_request_keeps_its_own_leading_matches(config, drafted, num_drafted, num_accepted) -> None:
    verifier = config.build()
    logits = one_hot_logits([1, 2, 3, 4], 6).repeat(2, 1, 1)
    logits[:, num_drafted + 1 :] = float("nan")
    proposal = Proposal(
        tokens_BK=torch.tensor([[5, 5, 5], drafted]), num_drafted_B=torch.tensor([num_drafted, num_drafted])
    )
    verdict = verifier.judge(logits, proposal, sampling_of(verifier, 2, 6, temperature=0), torch.tensor([4, 8]))
    assert verdict.num_accepted_B.tolist() == [0, num_accepted]
    assert verdict.tokens_BN[1, : num_accepted + 1].tolist() == [1, 2, 3, 4][: num_accepted + 1]
    assert verdict.logprobs_BN is None and verdict.overlap_BK is None


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("columns", [None, 0, 3])
def test_a_round_of_width_one_is_plain_decoding(config, columns: int | None) -> None:
    verifier = config.build()
    proposal = None
    if columns is not None:
        tokens = torch.zeros(1, columns, dtype=torch.int64)
        proposal = Proposal(tokens_BK=tokens, num_drafted_B=torch.tensor([0]))
    verdict = verifier.judge(
        one_hot_logits([3], 6) * 20, proposal, sampling_of(verifier, 1, 6, temperature=1.0), torch.tensor([4])
    )
    assert verdict.tokens_BN.tolist() == [[3]] and verdict.num_accepted_B.tolist() == [0]


@pytest.mark.parametrize("config", [GumbelVerifierConfig(), GreedyVerifierConfig()])
def test_output_is_that_of_plain_decoding_for_any_draft(config) -> None:
    """A table model read in blocks of random drafts gives the tokens of single steps, penalties included."""
    verifier = config.build()
    vocab = 7
    table_VV = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(4))
    options = {"temperature": 0.9, "frequency_penalty": 0.3, "repetition_penalty": 1.1}

    def decode(num_draft: int) -> list[int]:
        tokens = [0]
        request = SamplingRequest(params=SamplingParams(**options), stream=9, tokens=tokens, num_prompt=1)
        sampling = BatchSampling([request], noise=VocabularyNoise(vocab), coupling=verifier.coupling)
        while len(tokens) < 60:
            drafted = torch.randint(0, vocab, (1, num_draft))
            fed = torch.cat([torch.tensor([tokens[-1]]), drafted[0]])
            proposal = Proposal(tokens_BK=drafted, num_drafted_B=torch.tensor([num_draft])) if num_draft else None
            verdict = verifier.judge(table_VV[fed][None], proposal, sampling, torch.tensor([len(tokens)]))
            tokens.extend(verdict.tokens_BN[0, : verdict.num_accepted_B.item() + 1].tolist())
        return tokens[:60]

    plain = decode(0)
    assert decode(1) == plain and decode(4) == plain


@pytest.mark.parametrize("config", CONFIGS)
def test_every_committed_token_has_the_targets_logprob(config) -> None:
    verifier = config.build()
    logits = torch.randn(2, 3, 8)
    proposal = Proposal(tokens_BK=logits[:, :2].argmax(-1), num_drafted_B=torch.tensor([2, 1]))
    sampling = sampling_of(verifier, 2, 8, logprobs=True, temperature=0.6)
    verdict = verifier.judge(logits, proposal, sampling, torch.tensor([4, 4]))
    want = (logits / 0.6).log_softmax(-1).gather(-1, verdict.tokens_BN.unsqueeze(-1)).squeeze(-1)
    for b in range(2):
        end = verdict.num_accepted_B[b].item() + 1
        torch.testing.assert_close(verdict.logprobs_BN[b, :end], want[b, :end])


@pytest.mark.parametrize("config", [GumbelVerifierConfig(), RejectionVerifierConfig()])
def test_overlap_is_reported_when_the_draft_has_a_law(config) -> None:
    verifier = config.build()
    logits, probs = torch.randn(2, 3, 8), torch.rand(2, 2, 8).softmax(-1)
    proposal = Proposal(
        tokens_BK=torch.zeros(2, 2, dtype=torch.int64), num_drafted_B=torch.tensor([2, 2]), probs_BKV=probs
    )
    verdict = verifier.judge(logits, proposal, sampling_of(verifier, 2, 8, temperature=0.6), torch.tensor([4, 4]))
    torch.testing.assert_close(verdict.overlap_BK, torch.minimum((logits[:, :2] / 0.6).softmax(-1), probs).sum(-1))


@pytest.mark.parametrize("config", CONFIGS)
def test_trees_are_refused_by_name(config) -> None:
    verifier = config.build()
    proposal = Proposal(
        tokens_BK=torch.zeros(1, 2, dtype=torch.int64),
        num_drafted_B=torch.tensor([2]),
        parents_BK=torch.tensor([[-1, -1]]),
    )
    with pytest.raises(UnsupportedError, match=verifier.name):
        verifier.judge(torch.zeros(1, 3, 4), proposal, sampling_of(verifier, 1, 4, temperature=1.0), torch.tensor([1]))


@pytest.mark.parametrize("config", CONFIGS)
def test_verifiers_say_how_they_are_lossless(config) -> None:
    verifier = config.build()
    assert isinstance(verifier, Verifier)
    assert verifier.lossless is True
    same = "identical to the baseline, token for token"
    assert verifier.lossless_how == ("rule" if verifier.name == "rejection" else same)
    assert config == type(config)()
