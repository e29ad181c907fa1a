"""Launchers that plug in: the same sweep, several processes, and the same care for a job that dies."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import run
from experiments.run_folder import Status, read_json, status_of

Command = Callable[..., int]
SWEEP = ("-m", "target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4", "engine.repeats=1")
PLUGINS = {"joblib": "joblib", "submitit_local": "submitit", "submitit": "submitit", "ray": "ray"}


def installed(launcher: str) -> bool:
    """Whether Hydra's plug-in is there."""
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.hydra_{PLUGINS[launcher]}_launcher")


def jobs_of(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("*/status.json")]


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
@pytest.mark.filterwarnings("ignore")  # of the plug-ins
def test_jobs_of_several_processes_share_a_baseline_and_end_in_one_table(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher: str
) -> None:
    if not installed(launcher):
        pytest.skip(f"the plug-in of launcher={launcher} is not installed")
    assert run_here(*SWEEP, f"launcher={launcher}", "drafter=ngram,nextn", "drafter.num_draft_tokens=2") == 0
    folder = tmp_path / "multirun" / "adhoc"
    jobs = jobs_of(folder)
    assert len(jobs) == 2
    assert {status_of(job) for job in jobs} == {Status.DONE}
    assert all(read_json(job / "summary.json")["speedup"]["value"] for job in jobs)
    assert len(list((folder / "baselines").iterdir())) == 1
    pids = {read_json(job / "status.json")["pid"] for job in jobs}
    assert len(pids) == 2
    assert "sweep of 2 jobs" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", sorted(PLUGINS))
def test_launcher_without_its_plugin_names_the_extra(
    run_here: Command, capsys: pytest.CaptureFixture[str], launcher: str
) -> None:
    if installed(launcher):
        pytest.skip(f"the plug-in of launcher={launcher} is installed")
    assert run_here(*SWEEP, f"launcher={launcher}", "drafter=ngram,nextn") == 2
    error = capsys.readouterr().err
    assert f"pip install 'specdec-research[{PLUGINS[launcher]}]'" in error and error.count("\n") == 1


def test_help_names_every_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"launcher={name}" in said for name in ("basic", *PLUGINS))
