"""Result files say with what, and on what, their figures were measured."""

import json
from pathlib import Path

import pytest

from experiments import result_file
from experiments.checkpoints import EMBEDDED_FOLDER


def test_cpu_result_names_command_code_checkpoint_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "RESULTS", tmp_path / "results")
    result_file.save_cpu_result("a.json", "command --save", {"step_ms": 1.5}, folder=EMBEDDED_FOLDER)
    content = json.loads((tmp_path / "results" / "a.json").read_text(encoding="utf-8"))
    assert content["command"] == "command --save" and content["step_ms"] == 1.5
    assert content["code_hash"] and content["checkpoint_hash"] and content["processor"]
    assert content["threads"] == 1 and content["dtype"] == "float32"
