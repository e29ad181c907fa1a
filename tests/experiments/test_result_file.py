"""Result files say with what, and on what, their figures were measured."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from experiments import result_file
from experiments.checkpoints import EMBEDDED_FOLDER
from experiments.commit import commit_of
from experiments.fingerprint import hash_of_sources


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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one commit with one source file."""
    root = tmp_path / "checkout"
    (root / "specdec").mkdir(parents=True)
    (root / "specdec" / "a.py").write_text("A = 1\n", encoding="utf-8")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *identity, "-C", str(root), *words], check=True)
    return root


@pytest.mark.parametrize("named", [None, "0123456789ab-dirty"])
def test_without_a_clean_commit_that_of_the_code_is_named(named: str | None, checkout: Path, tmp_path: Path) -> None:
    path, code = tmp_path / "a.json", hash_of_sources([("specdec/a.py", b"A = 1\n")])
    path.write_text(json.dumps({"git_commit": named, "code_hash": code, "step_ms": 1.5}), encoding="utf-8")
    head = commit_of(checkout)
    assert head is not None and result_file.name_commit(path, checkout) == head
    assert json.loads(path.read_text(encoding="utf-8")) == {"git_commit": head, "code_hash": code, "step_ms": 1.5}


def test_the_command_names_every_file_that_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, unknown = tmp_path / "a.json", tmp_path / "b.json"
    known.write_text('{"git_commit": "0123456789ab"}', encoding="utf-8")
    unknown.write_text('{"git_commit": null, "code_hash": "12"}', encoding="utf-8")
    assert result_file.main([str(unknown), str(known)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{known}: 0123456789ab\n" and "no commit here has the code 12" in said.err


def test_code_that_no_commit_has_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"git_commit": null, "code_hash": "12"}', encoding="utf-8")
    with pytest.raises(result_file.UnknownCodeError, match="no commit here has the code 12"):
        result_file.name_commit(path, tmp_path)
    assert path.read_text(encoding="utf-8") == '{"git_commit": null, "code_hash": "12"}'
