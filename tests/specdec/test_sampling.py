"""BatchSampling: logits at their edges, penalties within a block, draws by coupling, independence of the batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.api import Coupling
from specdec.errors import UnsupportedError
from specdec.noise import VocabularyNoise, stream_key
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.sampling_params import SamplingParams

V = 16
NOISE = VocabularyNoise(V)


def request(*, stream: int = 11, tokens: list[int] | None = None, num_prompt: int = 2, stop_ids=(), **options):
    return SamplingRequest(
        params=SamplingParams(**options),
        stream=stream,
        tokens=[1, 2] if tokens is None else tokens,
        num_prompt=num_prompt,
        stop_ids=stop_ids,
    )


def batch(*requests: SamplingRequest, coupling: Coupling = Coupling.SHARED) -> BatchSampling:
    return BatchSampling(requests, noise=NOISE, coupling=coupling)


def random_logits(num_reqs: int, width: int) -> torch.Tensor:
    return torch.randn(num_reqs, width, V, generator=torch.Generator().manual_seed(1))


def law_of(logits: list[float], **options) -> torch.Tensor:
    padded = torch.full((1, 1, V), float("-inf"))
    padded[0, 0, : len(logits)] = torch.tensor(logits)
    return batch(request(**options)).law(padded, None, torch.tensor([2]))[0, 0]


def test_law_is_softmax_at_the_temperature() -> None:
    logits = torch.randn(1, 1, V)
    law = batch(request(temperature=0.7)).law(logits, None, torch.tensor([2]))
    torch.testing.assert_close(law, (logits / 0.7).softmax(-1))


@pytest.mark.parametrize("temperature", [0, 1e-320, 1e-7, 1e-6, 1e-3])
def test_law_is_a_point_mass_when_cold(temperature: float) -> None:
    law = law_of([1.0, 3.0, 2.0], temperature=temperature)
    assert law[1] == 1 and law.sum() == 1


@pytest.mark.parametrize("temperature", [1e6, 1e38, 1e300])
def test_law_is_uniform_over_possible_tokens_when_hot(temperature: float) -> None:
    law = law_of([1.0, 3.0, 2.0], temperature=temperature)
    torch.testing.assert_close(law[:3], torch.full((3,), 1 / 3))
    assert law[3:].sum() == 0


def test_greedy_takes_the_lowest_id_on_ties_and_never_nan() -> None:
    logits = torch.tensor([float("nan"), 1.0, 5.0, 5.0] + [0.0] * (V - 4)).view(1, 1, V)
    for temperature in (0.0, 1e-6):
        assert batch(request(temperature=temperature)).law(logits, None, torch.tensor([2]))[0, 0, 0] == 0
    assert batch(request(temperature=0)).choose(logits, None, torch.tensor([2])).item() == 2
    mixed = batch(request(temperature=0), request(temperature=1, top_k=3))
    assert mixed.choose(logits.expand(2, 1, V), None, torch.tensor([2, 2]))[0].item() == 2


def test_nan_and_impossible_tokens_are_never_drawn_at_any_temperature() -> None:
    logits = torch.full((1, 40, V), float("nan"))
    logits[:, :, 3] = -50.0
    logits[:, :, 9] = float("-inf")
    for temperature in (0.0, 0.5, 1e30):
        choice = batch(request(temperature=temperature)).choose(logits, torch.zeros(1, 39).long(), torch.tensor([0]))
        assert (choice == 3).all()


def test_infinite_logits_win_without_nan() -> None:
    law = law_of([float("inf"), 1.0, float("inf")], temperature=0.5)
    torch.testing.assert_close(law[:3], torch.tensor([0.5, 0.0, 0.5]))


def test_top_k_keeps_the_lowest_ids_among_ties() -> None:
    law = law_of([1.0, 2.0, 1.0, 1.0], temperature=1.0, top_k=2)
    assert law.nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("top_k", [0, -1, V, 10**9])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    assert torch.equal(law_of([1.0, 2.0, 3.0], temperature=1.0, top_k=top_k), law_of([1.0, 2.0, 3.0], temperature=1.0))


def test_top_k_one_is_greedy_with_the_lowest_id() -> None:
    assert law_of([1.0, 2.0, 2.0], temperature=5.0, top_k=1).tolist()[:3] == [0, 1, 0]


def test_top_p_keeps_the_shortest_prefix_that_reaches_the_mass() -> None:
    logits = [math.log(x) for x in (0.5, 0.25, 0.125, 0.125)]
    for top_p, num_kept in {0.0: 1, 1e-9: 1, 0.49: 1, 0.51: 2, 0.76: 3, 0.999: 4}.items():
        assert (law_of(logits, temperature=1.0, top_p=top_p) > 0).sum() == num_kept


def test_top_p_one_keeps_tokens_below_rounding() -> None:
    assert (law_of([0.0, -80.0, -85.0], temperature=1.0, top_p=1.0) > 0).sum() == 3
    assert (law_of([0.0, -80.0, -85.0], temperature=1.0, top_p=1.0, top_k=3) > 0).sum() == 3


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]
    # Of the two kept, the first holds 4/7 > 0.5 of the mass.
    law = law_of(logits, temperature=1.0, top_k=2, top_p=0.5)
    assert law.nonzero().flatten().tolist() == [0]


def test_min_p_compares_with_the_most_probable_token() -> None:
    logits = [math.log(x) for x in (0.5, 0.3, 0.15, 0.05)]
    assert (law_of(logits, temperature=1.0, min_p=0.31) > 0).sum() == 2
    assert (law_of(logits, temperature=1.0, min_p=0.0) > 0).sum() == 4
    assert law_of([1.0, 2.0, 2.0], temperature=1.0, min_p=1.0).tolist()[:3] == [0, 0.5, 0.5]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(-6, 6), min_size=V, max_size=V),
    st.integers(-1, V + 2).filter(bool),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.1, 1e4),
)
def test_filters_match_a_plain_reading(logits, top_k, top_p, min_p, temperature) -> None:
    """Integer logits, so that ties are common."""
    law = law_of(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.isfinite(law).all() and abs(law.sum() - 1) < 1e-5
    order = sorted(range(V), key=lambda i: (-logits[i], i))[: top_k if top_k > 0 else V]
    weights = torch.tensor([logits[i] / temperature for i in order], dtype=torch.float64).softmax(0)
    want, edges, before = set(), set(), 0.0
    for rank, i in enumerate(order):
        if rank == 0 or before < top_p or top_p == 1:
            want.add(i)
        # Within rounding of a threshold either answer is right.
        if abs(before - top_p) < 1e-6 or abs(weights[rank] / weights[0] - min_p) < 1e-6:
            edges.add(i)
        before += weights[rank].item()
    want = {i for i in want if weights[order.index(i)] / weights[0] >= min_p}
    got = set(law.nonzero().flatten().tolist())
    # A weight that underflows in single precision is not kept either.
    lost = {i for rank, i in enumerate(order) if weights[rank] / weights[0] < 1e-30}
    assert (got ^ want) <= edges | lost
    assert order[0] in got


def test_filters_of_one_request_leave_the_others_alone() -> None:
    logits = random_logits(3, 2)
    drafted = torch.zeros(3, 1, dtype=torch.int64)
    options = [{"top_k": 3}, {}, {"top_p": 0.4, "min_p": 0.2}]
    together = batch(*[request(temperature=1.0, **o) for o in options]).law(logits, drafted, torch.tensor([2, 2, 2]))
    for b, o in enumerate(options):
        alone = batch(request(temperature=1.0, **o)).law(logits[b : b + 1], drafted[:1], torch.tensor([2]))
        assert torch.equal(alone[0], together[b])


def test_penalties_follow_the_usual_formulas() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 4.0] + [0.5] * (V - 4)).view(1, 1, V)
    sampling = batch(
        request(
            tokens=[0, 1, 3, 3],
            num_prompt=2,
            repetition_penalty=2.0,
            frequency_penalty=0.5,
            presence_penalty=0.25,
        )
    )
    out = sampling.adjust(logits, None, torch.tensor([4]))[0, 0, :5]
    # 0 and 1 are prompt only (repetition), 3 is output twice (all three), 2 and 4 are new.
    torch.testing.assert_close(out, torch.tensor([1.0, -4.0, 1.0, 2.0 - 2 * 0.5 - 0.25, 0.5]))


PENALTIES = {"repetition_penalty": 1.7, "frequency_penalty": 0.6, "presence_penalty": 0.4}


def test_penalties_see_tokens_drafted_earlier_in_the_block() -> None:
    known, drafted = [3, 5, 7], [7, 2, 7]
    logits = torch.randn(1, 4, V)
    block = batch(request(tokens=known, **PENALTIES)).adjust(logits, torch.tensor([drafted]), torch.tensor([3]))
    for j in range(4):
        alone = batch(request(tokens=known + drafted[:j], **PENALTIES))
        row = alone.adjust(logits[:, j : j + 1], None, torch.tensor([3 + j]))
        torch.testing.assert_close(row[0, 0], block[0, j])


def test_penalties_follow_the_live_token_list_across_rounds() -> None:
    tokens = [3, 5]
    sampling = batch(request(tokens=tokens, **PENALTIES))
    logits = torch.randn(1, 1, V)
    sampling.adjust(logits, None, torch.tensor([2]))
    tokens.extend([5, 9, 9])
    fresh = batch(request(tokens=list(tokens), **PENALTIES))
    again = sampling.adjust(logits, None, torch.tensor([5]))
    torch.testing.assert_close(again, fresh.adjust(logits, None, torch.tensor([5])))


def test_penalties_ignore_padding_of_the_draft() -> None:
    sampling = batch(request(**PENALTIES))
    logits = torch.randn(1, 3, V)
    out = sampling.adjust(logits, torch.tensor([[-1, V + 5]]), torch.tensor([2]))
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[0, 0], sampling.adjust(logits[:, :1], None, torch.tensor([2]))[0, 0])


def test_penalties_of_one_request_leave_the_others_alone() -> None:
    logits = torch.randn(2, 1, V)
    out = batch(request(), request(**PENALTIES)).adjust(logits, None, torch.tensor([2, 2]))
    assert torch.equal(out[0], logits[0])
    assert not torch.equal(out[1], logits[1])


def test_minimum_length_forbids_stops_by_position_within_the_block() -> None:
    logits = torch.zeros(1, 4, V)
    logits[..., 6] = 9.0
    sampling = batch(request(temperature=0, min_new_tokens=3, stop_ids=(6, 8, V + 3)))
    # Two prompt tokens and one output token are known: rows 0 and 1 would be output tokens 2 and 3.
    choice = sampling.choose(logits, torch.tensor([[1, 1, 1]]), torch.tensor([3]))
    assert choice.tolist() == [[0, 0, 6, 6]]


def test_seeded_request_draws_the_same_whatever_shares_its_batch() -> None:
    logits = random_logits(1, 50)
    positions = torch.tensor([5])
    seeded = request(stream=stream_key(42, request_id="x", run_seed=0), temperature=0.9)
    drafted = torch.zeros(1, 49, dtype=torch.int64)
    alone = batch(seeded).choose(logits, drafted, positions)
    others = [
        request(temperature=0),
        request(temperature=1.3, top_k=3, top_p=0.8, stream=5),
        request(temperature=1, min_p=0.2, stream=6, **PENALTIES),
        request(temperature=1, min_new_tokens=4, stop_ids=(1,), stream=8),
    ]
    for other in others:
        pair = batch(other, seeded).choose(
            torch.cat([random_logits(1, 50) * 2, logits]), drafted.expand(2, -1), torch.tensor([9, 5])
        )
        assert torch.equal(pair[1], alone[0])


def test_block_choice_equals_single_steps() -> None:
    logits = random_logits(1, 20)
    drafted = torch.randint(0, V, (1, 19))
    for options in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9, **PENALTIES}):
        known = [1, 2]
        block = batch(request(tokens=known, **options)).choose(logits, drafted, torch.tensor([2]))
        for j in range(20):
            single = batch(request(tokens=known + drafted[0, :j].tolist(), **options))
            assert single.choose(logits[:, j : j + 1], None, torch.tensor([2 + j])).item() == block[0, j]


def test_unseeded_requests_do_not_share_a_stream() -> None:
    streams = [stream_key(None, request_id=f"line-{i}", run_seed=0) for i in range(2)]
    logits = torch.zeros(2, 200, V)
    choice = batch(*[request(stream=s, temperature=1.0) for s in streams]).choose(
        logits, torch.zeros(2, 199).long(), torch.tensor([0, 0])
    )
    agree = (choice[0] == choice[1]).double().mean()
    assert abs(agree - 1 / V) < 4 * (1 / V / 200) ** 0.5


def test_shared_draw_equals_the_targets_choice_at_the_same_position() -> None:
    sampling = batch(request(temperature=1.0), request(temperature=0, stream=3))
    logits = random_logits(2, 1)
    draft = sampling.draw(logits[:, 0], torch.tensor([4, 9]))
    assert draft.probs_BV is None
    assert torch.equal(draft.tokens_B, sampling.choose(logits, None, torch.tensor([4, 9]))[:, 0])


def test_independent_draw_reports_the_law_it_drew_from() -> None:
    sampling = batch(request(temperature=0.8, top_k=4), coupling=Coupling.INDEPENDENT)
    logits = random_logits(1, 1)[:, 0]
    positions = torch.arange(20_000)
    counts, probs = torch.zeros(V), None
    repeated = BatchSampling([request(temperature=0.8, top_k=4)] * 2000, noise=NOISE, coupling=Coupling.INDEPENDENT)
    for chunk in positions.split(2000):
        draft = repeated.draw(logits.expand(2000, V), chunk)
        counts += torch.bincount(draft.tokens_B, minlength=V)
        probs = draft.probs_BV[0]
    torch.testing.assert_close(probs, sampling.law(logits[:, None], None, torch.tensor([0]))[0, 0])
    assert (counts[probs == 0] == 0).all()
    kept = probs > 0
    chi2 = ((counts - 20_000 * probs)[kept] ** 2 / (20_000 * probs[kept])).sum()
    assert chi2 < 17


def test_independent_draw_does_not_use_the_targets_noise() -> None:
    logits = torch.zeros(1, V)
    independent = batch(request(temperature=1.0), coupling=Coupling.INDEPENDENT)
    shared = batch(request(temperature=1.0))
    positions = torch.arange(300).split(1)
    agreements = [(independent.draw(logits, p).tokens_B == shared.draw(logits, p).tokens_B).item() for p in positions]
    agree = sum(agreements) / 300
    assert abs(agree - 1 / V) < 4 * (1 / V / 300) ** 0.5


@pytest.mark.parametrize("coupling", list(Coupling))
def test_greedy_draws_are_point_masses(coupling: Coupling) -> None:
    logits = random_logits(2, 1)[:, 0]
    hot = batch(request(temperature=2.0), request(temperature=2.0, stream=4), coupling=coupling)
    cold = batch(request(temperature=0), request(temperature=0), coupling=coupling)
    for draft in (hot.draw(logits, torch.tensor([3, 4]), greedy=True), cold.draw(logits, torch.tensor([3, 4]))):
        assert draft.probs_BV is None
        assert torch.equal(draft.tokens_B, logits.argmax(-1))


def test_greedy_coupling_ignores_the_temperature() -> None:
    logits = random_logits(1, 1)[:, 0]
    draft = batch(request(temperature=5.0), coupling=Coupling.GREEDY).draw(logits, torch.tensor([3]))
    assert draft.tokens_B == logits.argmax()


def test_logprobs_are_those_of_the_processed_law() -> None:
    logits = random_logits(2, 1)
    sampling = batch(request(temperature=0.5, top_k=5, logprobs=True), request(temperature=0, top_k=1))
    tokens = logits.argmax(-1)
    out = sampling.logprobs(logits, None, torch.tensor([2, 2]), tokens)
    kept = logits[0, 0].topk(5).values / 0.5
    torch.testing.assert_close(out[0, 0], kept.log_softmax(0)[0])
    # A greedy request reports its law at temperature 1, without filters.
    torch.testing.assert_close(out[1, 0], logits[1, 0].log_softmax(0).max())


def test_logits_over_another_vocabulary_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="vocabulary has 16"):
        batch(request()).draw(torch.zeros(1, V - 1), torch.tensor([3]))


def test_acceptance_uniforms_are_keyed_by_position() -> None:
    sampling = batch(request())
    wide = sampling.acceptance_uniforms(torch.tensor([4]), 6)
    assert torch.equal(wide[:, 2:4], sampling.acceptance_uniforms(torch.tensor([6]), 2))
