"""The trial: a row per batch size, and a broken variant that does not end it."""

import json

import pytest

from experiments.training.trial import trial


@pytest.mark.filterwarnings("ignore")  # the profiler and the tracer warn on their own account
def test_trial_falls_back_to_eager_and_finishes_a_run(trainer_config, tmp_path):
    config = trainer_config(max_steps=0, minutes=1.0, compile=True, compile_backend="no_such_backend")
    rows = trial(config, tmp_path, seconds=60.0, batches=[2])
    assert "no_such_backend" in rows[0]["error"]
    assert rows[1]["compile"] is False and rows[1]["tokens_per_s"] > 0
    assert rows[1]["result"]["bits_per_byte"] > 0
    assert json.loads((tmp_path / "trial.json").read_text()) == json.loads(json.dumps(rows))
    assert (tmp_path / "profile_2_eager.txt").exists() and (tmp_path / "error_2.txt").exists()
