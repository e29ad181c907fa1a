"""Trainer settings: every impossible value is named with its key, lists become tuples, JSON and back is the same."""

import json

import pytest

from experiments.training.config import TrainerConfig, config_from_dict, config_to_dict
from experiments.training.device import require_device
from specdec.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"no_such": 1}, "no_such"),
        ({"batch_sequences": 0}, "trainer.batch_sequences"),
        ({"compute_dtype": "fp8"}, "trainer.compute_dtype"),
        ({"device": "tpu"}, "trainer.device"),
        ({"device": "cuda:x"}, "trainer.device"),
        ({"save_minutes": -1}, "trainer.save_minutes"),
        ({"save_minutes": "often"}, "trainer.save_minutes"),
        ({"log_steps": 0}, "trainer.log_steps"),
        ({"eval_sequences": 0}, "trainer.eval_sequences"),
        ({"eval_documents": -1}, "trainer.eval_documents"),
        ({"seed": -1}, "trainer.seed"),
        ({"compile": 1}, "trainer.compile"),
        ({"data": {"sequence_tokens": 40}}, "trainer.data.sequence_tokens"),
        ({"data": {"workers": -1}}, "trainer.data.workers"),
        ({"model": {"compress_ratios": 4}}, "trainer.model.compress_ratios"),
        ({"optimizer": {"matrix_lr": -0.1}}, "trainer.optimizer.matrix_lr"),
        ({"optimizer": {"vector_lr": float("nan")}}, "trainer.optimizer.vector_lr"),
        ({"optimizer": {"momentum": 1.0}}, "trainer.optimizer.momentum"),
        ({"optimizer": {"betas": [0.9]}}, "trainer.optimizer.betas"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "trainer.optimizer.betas"),
        ({"optimizer": {"clip": -1}}, "trainer.optimizer.clip"),
        ({"schedule": {"quantise_from": 1.5}}, "trainer.schedule.quantise_from"),
        ({"schedule": {"warmup": 0.6, "decay_from": 0.5}}, "trainer.schedule.warmup"),
        ({"objective": {"nextn_weights": []}}, "trainer.objective.nextn_weights"),
        ({"objective": {"nextn_weights": [0.2, -0.1]}}, "trainer.objective.nextn_weights"),
        ({"objective": {"distil": 1.1}}, "trainer.objective.distil"),
        ({"objective": {"indexer": -0.1}}, "trainer.objective.indexer"),
    ],
)
def test_impossible_settings_are_named(trainer_config, settings, key):
    with pytest.raises(ConfigError, match=key):
        trainer_config(**settings)


def test_settings_survive_json_and_hold_tuples(trainer_config):
    for config in (TrainerConfig(), trainer_config(optimizer={"betas": [0.8, 0.9]})):
        assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config
        assert isinstance(hash(config), int)
    assert config.optimizer.betas == (0.8, 0.9) and config.objective.nextn_weights == (0.2, 0.1)


def test_a_gpu_that_is_not_there_is_refused():
    assert require_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match=r"device must be cpu.*got 'cuda:99' \(conf: trainer.device\)"):
        require_device("cuda:99")
