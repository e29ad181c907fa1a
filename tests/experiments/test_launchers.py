"""Launchers that plug in: the same sweep, several processes, and the same care for a job that dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import run
from experiments.app import CONF
from experiments.children import descendants, is_alive
from experiments.run_folder import Status, failure_of, read_json, status_of

Command = Callable[..., int]
SWEEP = ("-m", "target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4", "engine.repeats=1")
SLOW = """
import time
from dataclasses import dataclass
from pathlib import Path

from specdec.api import DrafterNeeds


@dataclass(frozen=True, kw_only=True)
class SlowConfig:
    seconds: float = 60
    num_draft_tokens: int = 2
    needs = DrafterNeeds()

    def build(self, setup):
        Path(f"slow-{self.seconds}").touch()
        time.sleep(self.seconds)
"""
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


def test_interrupt_of_a_local_submitit_sweep_leaves_no_process(tmp_path: Path) -> None:
    """Of the sweep alone, as from a job system; a terminal interrupts the others, too."""
    if not installed("submitit_local"):
        pytest.skip("the plug-in of launcher=submitit_local is not installed")
    (tmp_path / "slow_guest.py").write_text(SLOW, encoding="utf-8")
    guest = ("drafter=custom", "drafter._target_=slow_guest.SlowConfig", "+drafter.params.seconds=50,60")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *SWEEP, "launcher=submitit_local", *guest, "engine.threads=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CONF.parent)])},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("slow-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    below = descendants(process.pid)
    assert len(below) >= 4
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=40)
    assert process.returncode == 130, said
    while any(map(is_alive, below)) and time.monotonic() < deadline + 30:
        time.sleep(0.05)
    assert not any(map(is_alive, below))
    jobs = jobs_of(tmp_path / "multirun" / "adhoc")
    assert [failure_of(job) for job in jobs] == ["interrupted"] * 2
