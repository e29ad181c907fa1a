"""Measurements run from end to end on small sizes without a GPU; their figures mean nothing here."""

from time import sleep

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from experiments import bench_round
from experiments.gpu.marks import CATCH_UP, RESULT, STAGE, TARGET, VERIFICATION, draft_step
from experiments.gpu.models import build
from experiments.gpu.phases import GAPS
from experiments.gpu.round_prefixes import prefixes
from experiments.gpu.sanitize import SMALL
from experiments.gpu.timing import bench_device, capture, difference_ms
from experiments.gpu.worlds import World, WorldShape, make_world
from specdec.errors import UnsupportedError
from specdec.rounds.device_round import DeviceRound

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world() -> World:
    model, nextn = build(SMALL, CPU, torch.float32)
    shape = WorldShape(batch=2, context=96, cache_dtype="fp32", num_draft_tokens=2, kernels=Kernels.REFERENCE)
    return make_world(model, nextn, shape)


@torch.no_grad()
def test_only_the_whole_round_has_a_result(world: World) -> None:
    found = prefixes(world, 2)
    assert list(found) == [STAGE, TARGET, VERIFICATION, CATCH_UP, draft_step(2), RESULT]
    rounds = {phase: function() for phase, function in found.items()}
    recorded = rounds.pop(RESULT)
    assert set(rounds.values()) == {None}
    # Accepted, three tokens, the number of drafts and their ids.
    assert isinstance(recorded, DeviceRound) and recorded.result_BX.shape == (2, 7)
    assert recorded.result_BX[:, 4].tolist() == [2, 2]


@torch.no_grad()
def test_plain_decoding_drafts_nothing(world: World) -> None:
    found = prefixes(world, 0)
    assert list(found) == [STAGE, TARGET, VERIFICATION, RESULT]
    assert found[RESULT]().result_BX.shape == (2, 2)


@torch.no_grad()
def test_phases_of_a_replay_have_all_of_it(world: World) -> None:
    found = bench_round.measure_replay(world, 2)
    assert [phase["name"] for phase in found["phases"]] == list(prefixes(world, 2))
    assert sum(phase["num_launches"] for phase in found["phases"]) == found["launches"]
    assert sum(phase["span_us"] for phase in found["phases"]) == pytest.approx(found["traced_span_us"])
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert min(found["shares"][phase["name"]] for phase in found["phases"]) > 0
    assert found["shares"][GAPS] == pytest.approx(found["idle_share"])
    assert found["shares"][TARGET] > found["shares"][VERIFICATION]


def test_a_dry_run_prints_phases_and_what_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    bench_round.main(["--dry"])
    printed = capsys.readouterr().out
    for phase in (STAGE, TARGET, VERIFICATION, CATCH_UP, draft_step(2), RESULT, GAPS):
        assert f"    {phase} " in printed
    assert "us beyond its replay" in printed and "not measured" not in printed


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


def test_a_difference_is_of_calls_in_turn() -> None:
    calls: list[str] = []
    found = difference_ms(lambda: calls.append("a"), lambda: (calls.append("b"), sleep(0.01)))
    assert found >= 9.0 and "".join(calls).replace("ab", "") == ""
