"""Sweeps: the grid is checked first, finished jobs are skipped, failing jobs end only themselves."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import run
from experiments.app import shard_of
from experiments.run_folder import Status, read_json, status_of
from experiments.supervised import supervisor
from specdec.errors import ConfigError

Command = Callable[..., int]
SWEEP = ("-m", "target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4")

PLUGIN = """
import sys
from dataclasses import dataclass

from specdec.api import DrafterNeeds


@dataclass(frozen=True, kw_only=True)
class GuestConfig:
    mood: str = "calm"
    num_draft_tokens: int = 2

    @property
    def needs(self):
        return DrafterNeeds()

    def build(self, setup):
        if self.mood == "angry":
            raise RuntimeError("no drafts today")
        if self.mood == "gone":
            sys.exit(3)
        return Guest(self.num_draft_tokens)


class Guest:
    needs = DrafterNeeds()

    def __init__(self, num_draft_tokens):
        self.num_draft_tokens = num_draft_tokens

    def propose(self, inputs):
        return None

    def forget(self, rows):
        pass
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides that choose a drafter from a module outside of the project."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "guest_drafter.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    return ("drafter=custom", "drafter._target_=guest_drafter.GuestConfig")


def jobs_of(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and entry.name != "baselines"]


def test_sweep_shares_a_baseline_and_counts_plain_decoding_once(run_here: Command, tmp_path: Path) -> None:
    overrides = (*SWEEP, "drafter=none,ngram", "drafter.num_draft_tokens=1,2")
    assert run_here(*overrides) == 0
    jobs = jobs_of(tmp_path / "multirun" / "adhoc")
    assert len(jobs) == 3
    assert {status_of(job) for job in jobs} == {Status.DONE}
    assert all(read_json(job / "summary.json")["lossless"] is True for job in jobs)
    assert len(list((tmp_path / "multirun" / "adhoc" / "baselines").iterdir())) == 1


def test_key_that_reads_as_a_number_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = "4675e82215186753"
    try:
        assert replace(run.app(), key=lambda config: key).main([*SWEEP, "drafter=ngram"]) == 0
    finally:
        supervisor().close()
    (job,) = jobs_of(tmp_path / "multirun" / "adhoc")
    assert (job.name, status_of(job)) == (key, Status.DONE)


@pytest.mark.parametrize("before", [2, 5])
def test_flag_may_stand_among_or_behind_the_settings(run_here: Command, tmp_path: Path, before: int) -> None:
    settings = [*SWEEP[1:], "drafter=none,ngram"]
    assert run_here(*settings[:before], "-m", *settings[before:]) == 0
    assert len(jobs_of(tmp_path / "multirun" / "adhoc")) == 2


def test_finished_jobs_are_skipped_and_interrupted_ones_run_again(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = (*SWEEP, "drafter=ngram", "drafter.num_draft_tokens=1,2")
    assert run_here(*overrides) == 0
    first, second = sorted(jobs_of(tmp_path / "multirun" / "adhoc"))
    (second / "status.json").write_text('{"status": "running"}', encoding="utf-8")
    before = (first / "status.json").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run_here(*overrides) == 0
    assert "1 of 2 jobs need not run" in capsys.readouterr().err
    assert (first / "status.json").read_text(encoding="utf-8") == before
    assert status_of(second) is Status.DONE


def test_sweep_ends_with_a_row_a_job_and_the_definitions_once(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # of a terminal; a table in a pipe does not wrap
    overrides = (*SWEEP, "drafter=none,ngram", "drafter.num_draft_tokens=1,2", "engine.repeats=1")
    for _ in range(2):  # the second time every job is skipped, and the table is the same
        assert run_here(*overrides) == 0
        printed = capsys.readouterr().out
        table = printed[printed.index("sweep of 3 jobs") :]
        heading = next(line for line in table.splitlines() if "tokens per step" in line)
        settings = ["drafter", "drafter.num_draft_tokens"]
        assert [cell.strip() for cell in heading.strip("┃").split("┃")] == [
            *settings, "tokens per step", "lossless", "speedup", "folder",
        ]  # fmt: skip
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
        assert {tuple(row[:2]) for row in rows} == {("none", "1"), ("ngram", "1"), ("ngram", "2")}
        folders = {job.name: read_json(job / "summary.json") for job in jobs_of(tmp_path / "multirun" / "adhoc")}
        for row in rows:
            value = folders[row[5]]["tokens_per_step"]["value"]
            assert row[2].startswith(f"{value:.3f}") and row[3] == "yes"
        assert "folders: multirun/adhoc/FOLDER" in table
        defined = [line.partition(":")[0] for line in table.splitlines() if line.startswith(("tok", "sp", "loop_"))]
        assert defined == ["speedup", "tokens_per_step", "speedup"]  # the first is the note on its range
        assert table.count("engine.repeats=3 gives one") == 1


def test_sweep_on_a_busy_machine_says_how_many_jobs_it_was(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = (*SWEEP, "drafter=none,ngram", "engine.repeats=1", "engine.device=cpu")
    assert run_here(*overrides) == 0
    for number, job in enumerate(jobs_of(tmp_path / "multirun" / "adhoc"), start=1):
        summary = read_json(job / "summary.json")
        for timing in (*summary["timings"], *summary["baseline_timings"]):
            timing["cpu_us"] = timing["total_us"] / number
        (job / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    capsys.readouterr()
    assert run_here(*overrides) == 0  # nothing is left to run, and the table is printed again
    assert "warning: the machine was busy during 1 of 2 jobs or their baselines" in capsys.readouterr().out


@pytest.mark.parametrize(("mood", "reason"), [("angry", "RuntimeError: no drafts today"), ("gone", "SystemExit: 3")])
def test_failing_job_does_not_end_the_others(
    run_here: Command,
    tmp_path: Path,
    guest: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    mood: str,
    reason: str,
) -> None:
    assert run_here(*SWEEP, *guest, f"drafter.params.mood={mood},calm") == 1
    jobs = jobs_of(tmp_path / "multirun" / "adhoc")
    assert sorted(status_of(job).value for job in jobs) == ["done", "failed"]
    error = capsys.readouterr().err
    assert "1 jobs did not finish" in error and reason in error


def test_whole_grid_is_checked_before_the_first_job(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*SWEEP, "drafter=ngram", "drafter.num_draft_tokens=1,99") == 2
    assert "1 to 31, got 99" in capsys.readouterr().err
    assert not (tmp_path / "multirun").exists()


def test_shards_do_the_grid_between_them(run_here: Command, tmp_path: Path) -> None:
    overrides = (*SWEEP, "drafter=ngram", "drafter.num_draft_tokens=1,2,3")
    assert run_here(*overrides, "shard=0/2") == 0
    assert len(jobs_of(tmp_path / "multirun" / "adhoc")) == 2
    assert run_here(*overrides, "shard=1/2") == 0
    assert len(jobs_of(tmp_path / "multirun" / "adhoc")) == 3


def test_published_sweep_is_a_file_with_a_folder_of_its_name(run_here: Command, tmp_path: Path) -> None:
    place = tmp_path / "extra" / "sweep"
    place.mkdir(parents=True)
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      drafter: none,ngram\n"
    (place / "pair.yaml").write_text(text, encoding="utf-8")
    assert run_here("--config-dir", "extra", "+sweep=pair", *SWEEP[1:]) == 0
    assert len(jobs_of(tmp_path / "multirun" / "pair")) == 2


def test_drafter_from_elsewhere_runs_in_every_spelling(
    run_here: Command, tmp_path: Path, guest: tuple[str, ...]
) -> None:
    single = SWEEP[1:]
    assert run_here(*single, *guest, "hydra.run.dir=a", "drafter.num_draft_tokens=3") == 0
    bare = ("~drafter", "+drafter._target_=guest_drafter.GuestConfig", "+drafter.mood=calm")
    assert run_here(*single, *bare, "hydra.run.dir=b") == 0
    place = tmp_path / "extra" / "drafter"
    place.mkdir(parents=True)
    (place / "guest.yaml").write_text("_target_: guest_drafter.GuestConfig\nmood: calm\n", encoding="utf-8")
    assert run_here("--config-dir", "extra", *single, "drafter=guest", "hydra.run.dir=c") == 0
    assert {status_of(tmp_path / name) for name in "abc"} == {Status.DONE}


def test_shard_is_a_part_counted_from_zero() -> None:
    assert list(range(7))[shard_of("1/3")] == [1, 4]
    assert list(range(3))[shard_of(None)] == [0, 1, 2]
    for text in ("3/3", "a/2", "1", "-1/2", "0/0"):
        with pytest.raises(ConfigError, match="shard must be i/n"):
            shard_of(text)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("drafter=ngram,nextn", "drafter.max_ngram=5,50"),
            "error: in job drafter=nextn drafter.max_ngram=5: unknown key drafter.max_ngram (this drafter has ",
        ),
        (
            ("drafter=none,ngram", "drafter.num_draft_tokens=0,2"),
            "error: in job drafter=ngram drafter.num_draft_tokens=0: drafter.num_draft_tokens must be an integer",
        ),
        (
            ("drafter=ngram", "drafter.branches=1,3", "verifier=rejection"),
            "error: in job drafter.branches=3: verifier rejection judges chains",
        ),
    ],
)
def test_mistake_in_one_job_names_the_job(
    run_here: Command, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], said: str
) -> None:
    assert run_here(*SWEEP, *overrides) == 2
    assert capsys.readouterr().err.startswith(said)
