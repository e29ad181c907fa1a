"""Heads trained for a tiny frozen target: the loss falls, and predicted acceptance is what the engine measures."""

import json
from pathlib import Path

import pytest
import torch

from backends.nextn.load import load_checkpoint
from experiments.training.heads import states
from specdec.errors import CapacityError, CheckpointError, UnsupportedError


def losses(folder: Path) -> list[list[float]]:
    return [json.loads(line)["loss"] for line in (folder / "curve.jsonl").read_text().splitlines()]


def test_training_reduces_the_loss_at_every_depth(trained) -> None:
    folder, _ = trained
    curve = torch.tensor(losses(folder))
    assert bool((curve[-5:].mean(0) < 0.7 * curve[:2].mean(0)).all())


def test_greedy_acceptance_is_predicted_exactly_and_nothing_is_lost(trained) -> None:
    folder, result = trained
    assert result["depths"][0]["measured"] > 0.15
    for row in result["depths"]:
        assert row["predicted"] == pytest.approx(row["measured"], abs=1e-9)
    assert result["tokens_per_step"]["predicted"] == pytest.approx(result["tokens_per_step"]["measured"])
    assert any(note.startswith("lossless: 3 of 3") for note in result["notes"])
    card = (folder / "checkpoint" / "README.md").read_text()
    assert "predicted" in card and f"{result['depths'][0]['measured']:.3f} +- " in card


def test_sampled_acceptance_is_predicted_within_its_error(train, settings_of, tmp_path: Path) -> None:
    text = {"temperature": 1.0, "max_new_tokens": 100, "heldout": 0.6}
    result = train(settings_of("eagle3", max_steps=25, lr=0.004, text=text), tmp_path)
    row = result["depths"][0]
    assert abs(row["predicted"] - row["measured"]) < 2 * row["error"]
    assert 0 < row["overlap"] < 1 and row["steps"] > 100


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_dumped_states_train_the_same_head(train, settings_of, tmp_path: Path, kind: str) -> None:
    for dump in (False, True):
        train(settings_of(kind, dump=dump), tmp_path / str(dump))
    torch.testing.assert_close(
        torch.tensor(losses(tmp_path / "True")), torch.tensor(losses(tmp_path / "False")), atol=1e-4, rtol=1e-4
    )
    assert list((tmp_path / "True" / "states").iterdir()) and not (tmp_path / "False" / "states").exists()


def test_a_dump_that_does_not_fit_is_refused_before_it_is_written(train, settings_of, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(states.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(CapacityError, match="trainer.dump=false"):
        train(settings_of("medusa", dump=True), tmp_path)
    assert not (tmp_path / "states").exists()


def test_a_reduced_vocabulary_is_the_commonest_of_the_text(train, settings_of, tmp_path: Path) -> None:
    result = train(settings_of("eagle3", shape={"draft_vocab_size": 60}), tmp_path)
    assert any("draft vocabulary: 60 of 258 ids" in note for note in result["notes"])
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert (config["draft_vocab_size"], config["vocab_size"]) == (60, 258)


def test_what_cannot_be_trained_is_refused_by_name_before_any_text_is_written(
    train, settings_of, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(UnsupportedError, match="NextN layer of a DeepSeek-V4 checkpoint"):
        train(settings_of("nextn"), tmp_path, said=said)
    with pytest.raises(CheckpointError, match=r"reads layer 9, the target has layers 0\.\.3"):
        train(settings_of("eagle3", shape={"layers": [0, 1, 9]}), tmp_path, said=said)
    with pytest.raises(UnsupportedError, match="lends no states"):
        train(settings_of("medusa"), tmp_path, said=said, _target_="experiments.toy.load", checkpoint="none")
    assert said == []


def test_nextn_is_trained_alone_and_its_target_stays(checkpoint: Path, train, settings_of, tmp_path: Path) -> None:
    target = {"_target_": "experiments.deepseek_v4.load", "checkpoint": str(checkpoint)}
    result = train(
        settings_of("nextn", depth=2, lr=0.003, text={"temperature": 0.0, "max_new_tokens": 12}), tmp_path, **target
    )
    before, after = (
        load_checkpoint(folder, device=torch.device("cpu"), dtype=torch.float32)
        for folder in (checkpoint, tmp_path / "checkpoint")
    )
    assert all(value.equal(after.target.state_dict()[name]) for name, value in before.target.state_dict().items())
    assert not before.nextn.mtp[0].e_proj.weight.equal(after.nextn.mtp[0].e_proj.weight)
    assert any(note.startswith("lossless: 3 of 3") for note in result["notes"])


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_heads_are_trained_for_a_v4_target_too(checkpoint: Path, train, settings_of, tmp_path: Path, kind: str) -> None:
    target = {"_target_": "experiments.deepseek_v4.load", "checkpoint": str(checkpoint)}
    for streams in ("flattened", "mean") if kind == "eagle3" else ("flattened",):
        text = {"temperature": 0.0, "max_new_tokens": 12}
        result = train(settings_of(kind, text=text, shape={"streams": streams}), tmp_path / streams, **target)
        assert any(note.startswith("lossless: 3 of 3") for note in result["notes"])
        for row in result["depths"]:
            assert row["predicted"] == pytest.approx(row["measured"], abs=1e-9)
