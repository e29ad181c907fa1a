"""reproduce: the same rows and outputs but for times, what differs otherwise, and refusals; help without torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments import cli, reproduce, run
from experiments.finished_run import read_run
from experiments.reproduce import mismatches


def write_prompts(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy run over a prompt file that lies beside it, in batches, with a baseline."""
    root = tmp_path_factory.mktemp("original")
    prompts = write_prompts(root / "prompts.jsonl", "one", "two two", "three three three")
    overrides = ["target=toy", "drafter=oracle", "workload=file", f"workload.path={prompts}", "engine.max_batch=2"]
    assert (
        run.main([*overrides, "sampling.max_new_tokens=12", "engine.threads=1", f"hydra.run.dir={root / 'run'}"]) == 0
    )
    torch.set_num_threads(1)
    return root / "run"


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the original to spoil."""

    def copy() -> Path:
        shutil.copytree(original, tmp_path / "copy")
        return tmp_path / "copy"

    return copy


def edit_line(path: Path, number: int, **content: object) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | content)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_run_and_its_baseline_are_reproduced(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reproduce", str(original)]) == 0
    assert "rows and 3 outputs of" in capsys.readouterr().out
    (found,) = tmp_path.glob("outputs/*/*")
    assert mismatches(read_run(original), read_run(found)) == []
    assert reproduce.main([str(original / "baseline"), f"to={tmp_path / 'plain'}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("identical: ")


def test_what_differs_is_said_and_the_exit_code_is_one(
    copied: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied()
    edit_line(folder / "steps.jsonl", 1, accepted=3, draft_us=-1.0)
    edit_line(folder / "outputs.jsonl", 0, text="other")
    env = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    env["packages"]["torch"] = "0.1"
    (folder / "env.json").write_text(json.dumps(env), encoding="utf-8")
    assert reproduce.main([str(folder), f"to={tmp_path / 'again'}"]) == 1
    out = capsys.readouterr().out
    assert "differs: outputs.jsonl: 1 of 3 lines differ; the first: request " in out and "text was other and is" in out
    assert "packages.torch is 0.1 in the first" in out


def test_times_and_a_torn_line_are_no_difference(original: Path, copied: Callable[[], Path]) -> None:
    folder = copied()
    edit_line(folder / "steps.jsonl", 0, draft_us=1.0, verify_us=2.0, other_us=3.0)
    edit_line(folder / "outputs.jsonl", 0, first_token_us=1.0, total_us=2.0)
    for name in ("steps.jsonl", "outputs.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-5])
    assert mismatches(read_run(folder), read_run(original)) == []
    assert len(read_run(folder).notes) == 2
    assert [str(item).partition(":")[0] for item in mismatches(read_run(original), read_run(folder))] == [
        "steps.jsonl",
        "outputs.jsonl",
    ]


@pytest.mark.parametrize("name", ["checkpoint_hash", "prompt_set_hash", "code_hash"])
def test_changed_inputs_are_refused_by_the_name_of_their_hash(
    copied: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = copied()
    env = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    (folder / "env.json").write_text(json.dumps(env | {name: "before"}), encoding="utf-8")
    assert reproduce.main([str(folder), f"to={tmp_path / 'again'}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"cannot be repeated: {name} was before and is" in error
    assert not (tmp_path / "again").exists()


def test_changed_prompt_file_is_refused(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = original.parent / "prompts.jsonl"
    before = prompts.read_bytes()
    write_prompts(prompts, "one", "two two", "three")
    assert reproduce.main([str(original), f"to={tmp_path / 'again'}"]) == 2
    prompts.unlink()
    assert reproduce.main([str(original), f"to={tmp_path / 'again'}"]) == 2
    prompts.write_bytes(before)
    changed, gone = capsys.readouterr().err.splitlines()
    assert "prompt_set_hash was" in changed and "cannot read the prompts" in gone


def test_nothing_is_overwritten(original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (original / "status.json").read_bytes()
    assert reproduce.main([str(original), f"to={original}"]) == 2
    assert "is there already: name a new folder" in capsys.readouterr().err
    assert (original / "status.json").read_bytes() == before


def test_unfinished_run_is_refused(copied: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied()
    (folder / "status.json").write_text('{"status": "running"}', encoding="utf-8")
    assert reproduce.main([str(folder)]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_help_of_the_reading_commands_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from experiments import cli\n"
        "for name in ('compare', 'gate', 'reproduce'):\n"
        "    assert cli.main([name, '--help']) == 0\n"
        "assert not {'torch', 'backends', 'drafters'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.count("usage: python -m experiments.") == 3
