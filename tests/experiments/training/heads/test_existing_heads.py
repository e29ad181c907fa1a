"""``trainer.checkpoint``: a head that exists is judged as after its training, and nothing is trained."""

import json
import shutil
from pathlib import Path

import pytest

from specdec.errors import CheckpointError, ConfigError

GREEDY = {"temperature": 0.0}


def test_a_stored_head_has_the_figures_of_its_training(train, settings_of, trained, tmp_path: Path) -> None:
    head, before = trained
    found = train(settings_of("eagle3", checkpoint=str(head / "checkpoint"), text=GREEDY), tmp_path)
    for row, row_before in zip(found["depths"], before["depths"], strict=True):
        assert row == pytest.approx(row_before)
    assert (found["heldout"], found["steps"], found["texts"]) == (3, before["steps"], before["texts"])
    assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "curve.jsonl").exists()
    card = (tmp_path / "README.md").read_text()
    assert "Measured apart from training" in card and f"{before['steps']} steps of 4 texts" in card
    assert json.loads((tmp_path / "result.json").read_text()) == found


def test_every_prompt_is_held_out_from_a_head_that_says_nothing_of_its_training(
    train, settings_of, trained, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    shutil.copytree(trained[0] / "checkpoint", head, ignore=shutil.ignore_patterns("training.json", "README.md"))
    found = train(settings_of("eagle3", checkpoint=str(head), text=GREEDY), tmp_path / "run")
    assert found["heldout"] == 10 and "steps" not in found
    assert "frozen target" not in (tmp_path / "run" / "README.md").read_text()


def test_what_cannot_be_measured_is_refused(train, settings_of, trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trainer=eagle3 or trainer=medusa, got nextn"):
        settings_of("nextn", checkpoint="somewhere")
    with pytest.raises(CheckpointError, match="trainer.checkpoint"):
        train(settings_of("medusa", checkpoint=str(tmp_path / "nowhere")), tmp_path)
    train(settings_of("medusa", depth=2, max_steps=1), tmp_path / "two")
    with pytest.raises(ConfigError, match="depth must be at most 2"):
        train(settings_of("medusa", depth=3, checkpoint=str(tmp_path / "two" / "checkpoint")), tmp_path)
    damaged = shutil.copytree(trained[0] / "checkpoint", tmp_path / "damaged")
    (damaged / "training.json").write_text("{")
    with pytest.raises(CheckpointError, match="leave it out"):
        train(settings_of("eagle3", checkpoint=str(damaged)), tmp_path)
