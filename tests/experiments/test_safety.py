"""What a run must never do: write where another writes, replace what is there, or lose rows when the disk is full."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments.run_folder import FolderLock, Status, failure_of, read_jsonl, status_of

Command = Callable[..., int]
TOY = ("target=toy", "drafter=ngram", "+experiment=smoke", "engine.repeats=1")
SWEEP = ("-m", *TOY, "workload.limit=1", "sampling.max_new_tokens=4")


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """All that stderr was told, but for the progress of a run."""
    (error,) = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" requests")]
    assert error.startswith("error: ")
    return error


def test_finished_run_is_not_replaced(run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(*TOY, "hydra.run.dir=here") == 0
    before = content_of(tmp_path / "here")
    capsys.readouterr()
    assert run_here(*TOY, "sampling.seed=1", "hydra.run.dir=here") == 2
    assert "here holds a finished run, and nothing is overwritten (conf: hydra.run.dir)" in one_line(capsys)
    assert content_of(tmp_path / "here") == before


def test_folder_of_a_run_that_goes_on_is_left_alone(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    (place / "status.json").write_text('{"status": "running"}', encoding="utf-8")
    (place / "steps.jsonl").write_text("{}\n", encoding="utf-8")
    before = content_of(place)
    with FolderLock(place, wait=False):
        assert run_here(*TOY, "hydra.run.dir=here") != 0
    assert "another process is writing to here" in one_line(capsys)
    assert content_of(place) == before


def test_files_that_no_run_wrote_are_left_alone(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "summary.json").write_text("my thesis", encoding="utf-8")
    assert run_here(*TOY, "hydra.run.dir=mine") == 1
    assert "mine holds summary.json and no status.json: no run wrote that" in one_line(capsys)
    assert (place / "summary.json").read_text(encoding="utf-8") == "my thesis"
    assert not (place / "status.json").exists()


def test_empty_and_half_finished_folders_are_used(run_here: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    half = tmp_path / "half"
    half.mkdir()
    (half / "status.json").write_text('{"status": "running"}', encoding="utf-8")
    (half / "steps.jsonl").write_text('{"request_id": "a"}\n{"req', encoding="utf-8")
    for name in ("empty", "half"):
        assert run_here(*TOY, "baseline=off", f"hydra.run.dir={name}") == 0
        assert status_of(tmp_path / name) is Status.DONE
        assert all("emitted" in row for row in read_jsonl(tmp_path / name / "steps.jsonl"))


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """Writing beyond ``num_bytes`` of any file fails with an OSError, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_fails_the_run_in_one_line_and_keeps_the_rows_so_far(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("sampling.max_new_tokens=24", "sampling.ignore_eos=true", "baseline=off")
    with files_end_at(6000):
        assert run_here(*TOY, *rows, "hydra.run.dir=full") == 1
    error = one_line(capsys)
    assert "a file cannot be used" in error and "hydra.run.dir" in error
    folder = tmp_path / "full"
    assert status_of(folder) is Status.FAILED and "OSError" in failure_of(folder)
    kept = read_jsonl(folder / "steps.jsonl")
    assert kept and all(row["request_id"] for row in kept)
    assert run_here(*TOY, *rows, "hydra.run.dir=full") == 0
    assert len(read_jsonl(folder / "steps.jsonl")) > len(kept)


def test_job_that_another_process_does_is_told_and_left_alone(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*SWEEP, "drafter.num_draft_tokens=1,2") == 0
    sweep = tmp_path / "multirun" / "adhoc"
    job, other = sorted(path.parent for path in sweep.glob("*/status.json"))
    content = json.loads((job / "status.json").read_text(encoding="utf-8"))
    (job / "status.json").write_text(json.dumps({**content, "status": "running"}), encoding="utf-8")
    before = content_of(job)
    capsys.readouterr()
    with FolderLock(job, wait=False):
        assert run_here(*SWEEP, "drafter.num_draft_tokens=1,2") == 1
    assert f"another process is writing to {job}" in capsys.readouterr().err
    assert {name: data for name, data in content_of(job).items() if ".hydra" not in name} == {
        name: data for name, data in before.items() if ".hydra" not in name
    }
    assert status_of(other) is Status.DONE


def test_parts_of_a_sweep_share_a_baseline_and_make_it_once(run_here: Command, tmp_path: Path) -> None:
    for part in ("0/2", "1/2"):
        assert run_here(*SWEEP, "drafter.num_draft_tokens=1,2", f"shard={part}") == 0
        (baseline,) = (tmp_path / "multirun" / "adhoc" / "baselines").iterdir()
        if part == "0/2":
            before = content_of(baseline)
    assert content_of(baseline) == before
    for path in (tmp_path / "multirun" / "adhoc").glob("*/summary.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["speedup"]["value"] is not None
