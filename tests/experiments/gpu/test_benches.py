"""Measurements run from end to end on small sizes without a GPU; their figures mean nothing here."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from experiments import bench_round
from experiments.gpu.models import build
from experiments.gpu.round_prefixes import CATCH_UP, TARGET, VERIFICATION, differences, draft_step, prefixes
from experiments.gpu.sanitize import SMALL
from experiments.gpu.timing import bench_device, capture
from experiments.gpu.worlds import World, WorldShape, make_world
from specdec.errors import UnsupportedError
from specdec.rounds.recorded import RecordedRound

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world() -> World:
    model, nextn = build(SMALL, CPU, torch.float32)
    shape = WorldShape(batch=2, context=96, cache_dtype="fp32", num_draft_tokens=2, kernels=Kernels.REFERENCE)
    return make_world(model, nextn, shape)


@torch.no_grad()
def test_prefixes_end_with_the_round_that_the_engine_records(world: World) -> None:
    found = prefixes(world, 2)
    assert list(found) == [TARGET, VERIFICATION, CATCH_UP, draft_step(2)]
    rounds = {name: function() for name, function in found.items()}
    for name, width in ((VERIFICATION, 4), (CATCH_UP, 6), (draft_step(2), 7)):
        # Accepted, three tokens; with drafts their number and ids.
        assert isinstance(rounds[name], RecordedRound) and rounds[name].result_BX.shape == (2, width)
        assert torch.equal(rounds[name].result_BX[:, :4], rounds[VERIFICATION].result_BX)
    assert torch.equal(rounds[draft_step(2)].result_BX[:, 5], rounds[CATCH_UP].result_BX[:, 5])
    assert rounds[draft_step(2)].result_BX[:, 4].tolist() == [2, 2]


@torch.no_grad()
def test_plain_decoding_has_two_phases(world: World) -> None:
    found = prefixes(world, 0)
    assert list(found) == [TARGET, VERIFICATION]
    assert found[VERIFICATION]().result_BX.shape == (2, 2)


def test_phases_add_up_to_the_whole() -> None:
    assert differences({"a": 1.0, "b": 1.5, "c": 1.75}) == {"a": 1.0, "b": 0.5, "c": 0.25}


def test_engine_shares_target_and_caches_and_fills_the_batch(world: World) -> None:
    plan = bench_round.Plan(raw=dict(SMALL), batches=(2,), draft_lengths=(0, 2), context=96, new_tokens=6)
    for num_drafts in (0, 2):
        found = bench_round.measure_engine(world, num_drafts, plan)
        assert found["rounds"] >= 1 and found["round_us"] > 0
        assert found["recordings"] == [f"2x{width} sampled" for width in sorted({1, num_drafts + 1})]
        assert 1.0 <= found["tokens_per_round"] <= num_drafts + 1


def test_rates_follow_from_acceptance() -> None:
    assert bench_round.expected_tokens(0.5, 2) == 1.75
    assert bench_round.rates(4, 0, 1000.0)["0.5"] == pytest.approx(4000.0)


def test_without_a_gpu_a_measurement_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UnsupportedError, match="--dry"):
        bench_device(dry=False)
    calls: list[int] = []
    capture([lambda: calls.append(1), lambda: calls.append(2)]).replay()
    assert calls == [1, 2]
