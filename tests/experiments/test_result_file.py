"""Result files say with what, and on what, their figures were measured."""

import json
from pathlib import Path

import pytest
import torch

from experiments import result_file
from experiments.checkpoints import EMBEDDED_FOLDER
from experiments.commit import ROOT, commit_with


def test_cpu_result_names_command_code_checkpoint_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "RESULTS", tmp_path / "results")
    result_file.save_cpu_result("a.json", "command --save", {"step_ms": 1.5}, folder=EMBEDDED_FOLDER)
    content = json.loads((tmp_path / "results" / "a.json").read_text(encoding="utf-8"))
    assert content["command"] == "command --save" and content["step_ms"] == 1.5
    assert content["code_hash"] and content["checkpoint_hash"] and content["processor"]
    assert content["threads"] == 1 and content["dtype"] == "float32"


@pytest.mark.gpu
def test_gpu_result_names_gpu_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "RESULTS", tmp_path)
    result_file.save_gpu_result("a.json", "command --save", {"step_ms": 1.5})
    content = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert content["gpu"] == torch.cuda.get_device_name() and content["cuda"] == torch.version.cuda
    assert content["driver"] and content["packages"]["torch"] and content["packages"]["triton"]
    assert content["step_ms"] == 1.5 and {"flash_mla", "git_commit", "code_hash"} <= content.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("580.95.05\n580.95.05\n", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172  Release Build\n", "570.172"),
        ("", None),
    ],
)
def test_a_driver_says_its_version(text: str, found: str | None) -> None:
    assert result_file.first_version(text) == found


def test_a_commit_that_is_named_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"git_commit": "0123456789ab"}', encoding="utf-8")
    assert result_file.name_commit(path) == "0123456789ab"
    assert path.read_text(encoding="utf-8") == '{"git_commit": "0123456789ab"}'


def test_without_a_clean_commit_that_of_the_code_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = json.loads((result_file.RESULTS / "drafters.json").read_text(encoding="utf-8"))
    if not (ROOT / ".git").exists() or commit_with(kept["code_hash"]) is None:
        pytest.skip("no checkout with that commit")
    paths = [tmp_path / "copy.json", tmp_path / "dirty.json"]
    for path, named in zip(paths, (None, "0123456789ab-dirty"), strict=True):
        path.write_text(json.dumps({**kept, "git_commit": named}), encoding="utf-8")
    assert result_file.main(list(map(str, paths))) == 0
    assert [json.loads(path.read_text(encoding="utf-8")) for path in paths] == [kept, kept]
    assert capsys.readouterr().out.count(kept["git_commit"]) == 2


def test_code_that_no_commit_has_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"git_commit": null, "code_hash": "12"}', encoding="utf-8")
    with pytest.raises(result_file.UnknownCodeError, match="no commit here has the code 12"):
        result_file.name_commit(path, tmp_path)
    assert path.read_text(encoding="utf-8") == '{"git_commit": null, "code_hash": "12"}'
