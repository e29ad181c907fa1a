"""Training forward and losses: equal to the model's dense forward, finite, and blind to later tokens."""

import pytest
import torch

from backends.deepseek_v4.dense import dense_forward
from backends.nextn.dense import dense_nextn
from experiments.training.architecture import build_models, official_config
from experiments.training.config import ObjectiveSettings
from experiments.training.forward import Trainee
from experiments.training.objective import Objective


@pytest.fixture
def models(trainer_config):
    raw = official_config(trainer_config().model, context=32, bos=2, eos=2)
    return build_models(raw, seed=1, device="cpu")


def tokens(models, length: int = 33) -> torch.Tensor:
    return torch.randint(models.config.vocab_size, (2, length))


def forward(models, windows, *, select_all: bool):
    return Trainee(models, backend=None).forward(
        windows[:, :-1],
        windows[:, 1:],
        depth=3,
        select_all=torch.tensor(select_all),
        stream_dtype=torch.float32,
    )


def test_forward_equals_the_dense_forward_of_target_and_nextn(models):
    windows = tokens(models)
    run = forward(models, windows, select_all=False)
    dense = dense_forward(models.target, windows[:, :-1]).streams
    assert torch.allclose(run.target_BLSD, dense, atol=1e-5)
    own = dense_nextn(models.nextn, models.target.embed, dense, windows[:, 1:], depth=3)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(run.nextn_BLSD, own, strict=True))


def test_select_all_attends_what_the_indexer_left_out(models):
    windows = tokens(models)
    sparse, full = (forward(models, windows, select_all=flag).target_BLSD for flag in (False, True))
    assert torch.allclose(sparse[:, :16], full[:, :16], atol=1e-6)
    assert not torch.allclose(sparse[:, 20:], full[:, 20:], atol=1e-6)


def test_loads_count_every_choice_of_every_layer(models):
    windows = tokens(models)
    run = forward(models, windows, select_all=False)
    chosen = windows[:, :-1].numel() * models.config.num_experts_per_tok
    assert [int(load.sum()) for load in run.loads] == [chosen, chosen, 3 * chosen]


def test_losses_are_finite_and_reach_every_trained_parameter(models):
    objective = Objective(Trainee(models, backend=None), ObjectiveSettings(), backend=None)
    losses = objective.losses(
        tokens(models),
        select_all=torch.tensor(False),
        nextn_factor=torch.tensor(1.0),
        stream_dtype=torch.float32,
    )
    assert len(losses.nextn) == 3 and losses.indexer > 0
    losses.total.backward()
    for name, parameter in models.trained().items():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_nextn_loss_at_a_slot_is_the_target_of_the_slot_after(models):
    """With the target's own logits as drafts, imitation costs the entropy of the target alone."""
    windows = tokens(models)
    objective = Objective(
        Trainee(models, backend=None), ObjectiveSettings(nextn_weights=[1.0], distil=0.0), backend=None
    )
    losses = objective.losses(
        windows, select_all=torch.tensor(False), nextn_factor=torch.tensor(1.0), stream_dtype=torch.float32
    )
    streams = forward(models, windows, select_all=False).nextn_BLSD[0]
    logits = models.nextn.logits(streams, models.target.head)[:, :-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 2:].flatten())
    assert torch.allclose(losses.nextn[0], expected, atol=1e-5)
