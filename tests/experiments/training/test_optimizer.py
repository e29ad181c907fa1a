"""Muon and its stacks: orthogonal updates, parameters as rounded copies of masters, router balance."""

import pytest
import torch

from backends.deepseek_v4.weights.writer import write_checkpoint
from experiments.training.architecture import build_models, official_config
from experiments.training.config import ObjectiveSettings, OptimizerSettings, ScheduleSettings
from experiments.training.export import load_stored
from experiments.training.muon import muon_step, orthogonalise
from experiments.training.optimizer import TrainingOptimizer, balance_router, is_matrix
from experiments.training.rounding import Storage, round_to_storage
from experiments.training.schedule import stage_at


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_orthogonalise_brings_singular_values_near_one(shape):
    matrices = torch.randn(shape) * 100
    values = torch.linalg.svdvals(orthogonalise(matrices, torch.float32))
    assert values.min() > 0.3 and values.max() < 1.3
    one = orthogonalise(matrices[1:2], torch.float32)
    assert torch.allclose(orthogonalise(matrices, torch.float32)[1:2], one, atol=1e-5)


def test_orthogonalise_of_zero_is_zero():
    assert orthogonalise(torch.zeros(2, 4, 6), torch.float32).abs().max() == 0


def test_muon_finds_the_minimum_of_a_quadratic():
    goal = torch.randn(1, 8, 8)
    masters, momentum = torch.zeros(1, 8, 8), torch.zeros(1, 8, 8)
    for step in range(200):
        muon_step(masters, momentum, masters - goal, lr=0.1 * (1 - step / 200), momentum=0.9, weight_decay=0.0)
    assert (masters - goal).norm() < 0.05 * goal.norm()


@pytest.fixture
def models(trainer_config):
    raw = official_config(trainer_config().model, context=32, bos=2, eos=2)
    return build_models(raw, seed=0, device="cpu")


def test_muon_takes_hidden_matrices_only(models):
    taken = {name for name, p in models.trained().items() if is_matrix(name, p)}
    assert {"layers.0.attn.wq_b.weight", "layers.1.ffn.experts.w2", "mtp.0.h_proj.weight"} <= taken
    assert not any("hc_" in n or "norm" in n or n in ("embed.weight", "head.weight") for n in taken)
    assert not any(name.endswith(("ffn.gate.weight", ".ape")) for name in taken)


def test_step_moves_every_trained_parameter_and_publishes_what_storage_holds(models, trainer_config, tmp_path):
    optimizer = TrainingOptimizer(models.trained(), OptimizerSettings())
    before = {name: p.detach().clone() for name, p in models.trained().items()}
    for p in models.trained().values():
        p.grad = torch.randn_like(p)
    optimizer.step(stage_at(0.9, ScheduleSettings(), ObjectiveSettings()))
    for name, p in models.trained().items():
        assert p.grad is None and not torch.equal(p, before[name]), name
    seen = {name: p.detach().clone() for name, p in models.trained().items()}
    optimizer.publish(rounded=False)
    raw = official_config(trainer_config().model, context=32, bos=2, eos=2)
    write_checkpoint(tmp_path, raw, models.parameters(), num_experts=models.config.n_routed_experts)
    load_stored(models, tmp_path)
    matrices = [name for name, p in models.trained().items() if is_matrix(name, p)]
    assert all(torch.equal(models.trained()[name], seen[name]) for name in matrices)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("rows", [128, 96])
def test_rounding_is_idempotent_and_close(storage, rows):
    matrices = torch.randn(2, rows, 64)
    rounded = round_to_storage(matrices, storage)
    assert torch.equal(round_to_storage(rounded, storage), rounded)
    assert (rounded - matrices).norm() < 0.2 * matrices.norm()


def test_balance_raises_idle_experts_and_lowers_busy_ones():
    bias = torch.zeros(3)
    balance_router(bias, torch.tensor([9.0, 3.0, 6.0]), 0.1)
    assert torch.allclose(bias, torch.tensor([-0.1, 0.1, 0.0]))
