"""The loop: learns, stops by the clock, resumes exactly, and leaves a checkpoint that loads."""

import json
from dataclasses import replace

import pytest
import torch

from backends.deepseek_v4.weights.files import CheckpointFiles
from experiments.training.data import load_corpus
from experiments.training.loop import Run, run_steps, train


def make_run(config, tmp_path) -> Run:
    return Run(config, load_corpus(config.data, tmp_path / "tokens.npz", config.seed))


class FakeClock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def quiet(text: str) -> None:
    """Say nothing."""


def test_loss_falls_on_a_small_text(trainer_config, tmp_path):
    run = make_run(trainer_config(max_steps=16, objective={"nextn_weights": [0.2]}), tmp_path)
    losses = [run.step()[1] for _ in range(16)]
    assert losses[-1].next_token < 0.9 * losses[0].next_token
    assert losses[-1].nextn[0] < 0.95 * losses[0].nextn[0]


def test_resumed_run_equals_the_uninterrupted_one(trainer_config, tmp_path):
    config = trainer_config(max_steps=6)
    whole = make_run(config, tmp_path)
    for _ in range(6):
        whole.step()
    first = make_run(config, tmp_path)
    for _ in range(4):
        first.step()
    first.save(tmp_path)
    second = make_run(config, tmp_path)
    second.load(tmp_path)
    assert second.progress.steps == 4
    for _ in range(2):
        second.step()
    expected = whole.models.parameters()
    assert all(torch.equal(value, expected[name]) for name, value in second.models.parameters().items())


def test_time_ends_the_run_and_schedules_it(trainer_config, tmp_path):
    config = trainer_config(max_steps=0, minutes=0.2, log_steps=1)
    run = make_run(config, tmp_path)
    run_steps(run, tmp_path, clock=FakeClock(), say=quiet)
    rows = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert run.progress.seconds >= 12 and 3 <= run.progress.steps <= 12
    assert rows[-1]["lr"] < 1 and rows[-1]["quantised"] and not rows[0]["quantised"]
    assert (tmp_path / "state.pt").exists()


def test_train_leaves_a_checkpoint_card_and_result(trainer_config, tmp_path):
    config = trainer_config(max_steps=2, eval_documents=1)
    result = train(config, tmp_path, say=quiet)
    folder = tmp_path / "checkpoint"
    files = CheckpointFiles(folder)
    assert "mtp.0.e_proj.scale" in files.keys and files.config["expert_dtype"] == "fp4"
    assert {"README.md", "tokenizer.json", "config.json"} <= {path.name for path in folder.iterdir()}
    assert "bits per byte" in (folder / "README.md").read_text()
    assert [row["step"] for row in result["curve"]] == [1, 2] and result["command"]
    assert result["checkpoint_bytes"] > 0 and result["progress"]["steps"] == 2
    windows = [q["window_tokens"] for q in result["stored"]]
    assert windows == [32, 64, 128, 256] and files.config["max_position_embeddings"] in windows
    again = train(config, tmp_path, say=quiet)
    assert again["progress"] == result["progress"]


@pytest.mark.filterwarnings("ignore")  # the tracer looks at gradients of tensors that have none
def test_compiled_pieces_equal_eager_ones(trainer_config, tmp_path):
    config = trainer_config(objective={"nextn_weights": [0.2]})
    config = replace(config, model=replace(config.model, compress_ratios=[4], num_hash_layers=0))
    traced = replace(config, compile=True, compile_backend="aot_eager")
    eager, compiled = make_run(config, tmp_path), make_run(traced, tmp_path)
    compiled.rehearse()
    for run in (eager, compiled):
        run.step()
    expected = eager.models.parameters()
    for name, value in compiled.models.parameters().items():
        assert torch.allclose(value, expected[name], atol=2e-2), name
    torch._dynamo.reset()
