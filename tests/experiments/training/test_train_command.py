"""``experiments.train`` from the command line: what it refuses, and a run of two steps through Hydra."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import train

RECIPE = Path(train.__file__).parent / "data" / "corpus_recipe.json"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("trainer.minutes=x", "trainer.minutes"),
        ("trainer.optimizer.matrx_lr=1", "trainer.optimizer.matrx_lr"),
        ("trainer.batch_sequences=0", "batch_sequences"),
        ("trainer.data.corpus=/nowhere", "/nowhere"),
        ("trainer=v5", "v5"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(override, named, capsys):
    assert train.main([override]) == 2
    message = capsys.readouterr().err.strip()
    assert named in message and len(message.splitlines()) == 1


def test_two_steps_through_the_command_line(trainer_config, tmp_path):
    config = dataclasses.asdict(trainer_config(max_steps=2, eval_documents=1))
    overrides = [f"trainer.{key}={value}" for key, value in config.items() if not isinstance(value, dict)]
    for section in ("model", "data"):
        overrides += [f"trainer.{section}.{key}={json.dumps(value)}" for key, value in config[section].items()]
    assert train.main([*overrides, f"hydra.run.dir={tmp_path}"]) == 0
    assert train.is_done(tmp_path)
    assert (tmp_path / "checkpoint" / "model.safetensors.index.json").exists()
    assert json.loads((tmp_path / "result.json").read_text())["config"]["max_steps"] == 2


def test_the_recipe_names_every_source_with_its_hash_and_no_address():
    text = RECIPE.read_text(encoding="utf-8")
    recipe = json.loads(text)
    assert sum(source["train_bytes"] for source in recipe["sources"]) == sum(recipe["totals"]["train"].values())
    assert all(len(source["train_sha256"]) == 64 and source["package"] for source in recipe["sources"])
    assert "http" not in text
