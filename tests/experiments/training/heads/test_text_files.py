"""Texts that are written once: a file of them, and a head that learns from it."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from experiments.training.heads.text_files import Origin, load_texts, save_texts
from experiments.training.heads.texts import Text
from specdec.errors import ConfigError, WorkloadError

TEXTS = (Text(tokens=(1, 2, 3), num_prompt=1, max_tokens=9), Text(tokens=(70000, 2, 5, 6), num_prompt=2, max_tokens=4))


def test_texts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "texts.safetensors"
    save_texts(path, TEXTS, Origin(target="abc", temperature=0.5))
    assert load_texts(path, target="abc") == TEXTS
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["temperature"] == "0.5"


def test_texts_of_another_target_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.safetensors"
    save_texts(path, TEXTS, Origin(target="abc", temperature=0.5))
    with pytest.raises(WorkloadError, match="another target"):
        load_texts(path, target="abd")
    path.write_bytes(b"nothing")
    for missing in (path, tmp_path / "nowhere"):
        with pytest.raises(WorkloadError, match="trainer.text.files"):
            load_texts(missing, target="abc")


def test_a_head_learns_from_texts_that_another_run_wrote(train, settings_of, tmp_path: Path) -> None:
    wrote = train(settings_of("texts", text={"max_new_tokens": 24}), tmp_path / "texts")
    file = tmp_path / "texts" / "texts.safetensors"
    assert wrote["texts"] == 10 and wrote["own_tokens"] <= 240 and not (tmp_path / "texts" / "checkpoint").exists()
    others = tmp_path / "others.txt"
    others.write_text("alpha\n\nsomething else")
    result = train(
        settings_of("medusa", text={"prompts": str(others), "files": [str(file)], "learn_prompts": True}), tmp_path
    )
    # Both prompts are held out, and so is what was written for one of them.
    assert (result["texts"]["training"], result["heldout"]) == (9, 2)
    assert len((tmp_path / "curve.jsonl").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "result.json").read_text())["texts"] == result["texts"]
    with pytest.raises(WorkloadError, match="held-out"):
        train(settings_of("medusa", text={"files": [str(file)]}), tmp_path)


def test_no_prompt_is_begun_when_the_time_is_up(train, settings_of, tmp_path: Path) -> None:
    wrote = train(settings_of("texts", text={"minutes": 1e-9, "max_new_tokens": 8}), tmp_path)
    assert wrote["texts"] == 3


def test_writing_texts_reads_none(settings_of) -> None:
    with pytest.raises(ConfigError, match="trainer.text.files"):
        settings_of("texts", text={"files": ["texts.safetensors"]})
    with pytest.raises(ConfigError, match="must be a list"):
        settings_of("medusa", text={"files": "texts.safetensors"})
