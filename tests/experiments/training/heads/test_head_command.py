"""``experiments.train trainer=eagle3`` and its kin from the command line: what they refuse, and a run through Hydra."""

import json
from pathlib import Path

import pytest

from experiments import train


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["trainer=eagle3", "trainer.depth=0"], "trainer.depth"),
        (["trainer=eagle3", "trainer.shape.layers=[1,2]"], "trainer.shape.layers"),
        (["trainer=eagle3", "trainer.shape.strems=mean"], "trainer.shape.strems"),
        (["trainer=medusa", "trainer.text.temperature=-1"], "trainer.text.temperature"),
        (["trainer=medusa", "trainer.text.prompts=/nowhere.txt"], "/nowhere.txt"),
        (["trainer=medusa", "target.checkpoint=/nowhere"], "target.checkpoint"),
        (["trainer=medusa", "target.cache_dtype=fp9"], "target.cache_dtype"),
        (["trainer=nextn", "trainer.dtype=bf16"], "trainer.dtype"),
        (["trainer=nextn", "target=nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(overrides, named, capsys) -> None:
    assert train.main(overrides) == 2
    message = capsys.readouterr().err.strip()
    assert named in message and len(message.splitlines()) == 1


def test_a_head_through_the_command_line(llama: Path, prompts: Path, tmp_path: Path, capsys) -> None:
    settings = ("trainer.max_steps=2", "trainer.device=cpu", "trainer.threads=1", f"trainer.text.prompts={prompts}")
    target = ("target=hf", f"target.checkpoint={llama}", "trainer.text.max_new_tokens=8")
    assert train.main(["trainer=eagle3", *target, *settings, f"hydra.run.dir={tmp_path}"]) == 0
    assert train.is_done(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
    }
    result = json.loads((tmp_path / "result.json").read_text())
    assert [row["depth"] for row in result["depths"]] == [1, 2, 3]
    said = capsys.readouterr().out
    assert "survival predicted | survival measured" in said and "MiB, made on the fly" in said
