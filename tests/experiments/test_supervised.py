"""The supervised process of a sweep: it keeps the target, dies for one run only, and never outlives its sweep."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import schemas
from experiments.app import CONF
from experiments.run_folder import Status, failure_of, read_json, status_of
from experiments.supervised import Supervisor, Task

Command = Callable[..., int]
SWEEP = ("-m", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4", "engine.repeats=1")

GUEST = """
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from experiments import toy
from specdec.api import DrafterNeeds


def load(request):
    with Path(os.environ["LOADS"]).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return toy.load(request)


@dataclass(frozen=True, kw_only=True)
class MoodConfig:
    mood: str = "calm"
    num_draft_tokens: int = 2

    @property
    def needs(self):
        return DrafterNeeds()

    def build(self, setup):
        if self.mood == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mood == "gone":
            os._exit(3)
        if self.mood == "slow":
            Path("slow").write_text(str(os.getpid()))
            time.sleep(60)
        return Mood()


class Mood:
    needs = DrafterNeeds()
    num_draft_tokens = 2

    def propose(self, inputs):
        return None

    def forget(self, rows):
        pass
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides that choose a target that counts how often it is loaded, and a drafter with a mood."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "moody_guest.py").write_text(GUEST, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(CONF.parent)]))
    monkeypatch.setenv("LOADS", str(tmp_path / "loads"))
    return (
        "target=custom",
        "target._target_=moody_guest.load",
        "drafter=custom",
        "drafter._target_=moody_guest.MoodConfig",
    )


def by_mood(tmp_path: Path) -> dict[str, Path]:
    """Folder of every job, by the mood of its drafter."""
    found = {}
    for path in (tmp_path / "multirun" / "adhoc").glob("*/status.json"):
        name = (path.parent / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
        found[name.partition("mood=")[2].split()[0]] = path.parent
    return found


def test_target_is_loaded_once_and_a_death_costs_one_job(
    run_here: Command, tmp_path: Path, guest: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    moods = "calm,merry,killed,glad,gone,still"
    assert run_here(*SWEEP, *guest, f"+drafter.params.mood={moods}", "drafter.num_draft_tokens=2") == 1
    folders = by_mood(tmp_path)
    bad = {"killed": "killed: its process was ended by SIGKILL", "gone": "killed: its process ended with exit code 3"}
    assert set(folders) == set(moods.split(","))
    said = capsys.readouterr().err
    assert "2 jobs did not finish" in said
    for mood, folder in folders.items():
        assert status_of(folder) is (Status.FAILED if mood in bad else Status.DONE)
        assert failure_of(folder).startswith(bad.get(mood, ""))
        assert bad.get(mood, "") in said
    # The first process did calm and merry before it died; glad and gone had the second one, still the third.
    loads = (tmp_path / "loads").read_text(encoding="utf-8").split()
    assert len(loads) == len(set(loads)) == 3
    assert not any(alive(int(pid)) for pid in loads)


def test_settings_that_the_target_does_not_see_do_not_load_it_again(
    run_here: Command, tmp_path: Path, guest: tuple[str, ...]
) -> None:
    assert run_here(*SWEEP, *guest, "engine.max_batch=1,2", "sampling.temperature=0,0.5") == 0
    assert len((tmp_path / "loads").read_text(encoding="utf-8").split()) == 1


@pytest.fixture
def slow_sweep(tmp_path: Path, guest: tuple[str, ...]) -> Iterator[tuple[subprocess.Popen, int]]:
    """A sweep whose second job takes a minute, at that job; and the process that does it."""
    command = [sys.executable, "-m", "experiments.run", *SWEEP, *guest, "+drafter.params.mood=calm,slow,merry"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    marker = tmp_path / "slow"
    try:
        until(lambda: marker.exists() and marker.read_text(encoding="utf-8").isdigit())
        yield process, int(marker.read_text(encoding="utf-8"))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_leaves_a_usable_folder_and_no_process(
    tmp_path: Path, slow_sweep: tuple[subprocess.Popen, int], number: signal.Signals, code: int
) -> None:
    """As Ctrl-C in a terminal and the end of a Slurm job, which reach every process."""
    process, worker = slow_sweep
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert "interrupted" in said and "Traceback" not in said
    assert not alive(worker)
    folders = by_mood(tmp_path)
    assert status_of(folders["calm"]) is Status.DONE
    assert failure_of(folders["slow"]) == "interrupted"
    assert "merry" not in folders
    assert read_json(folders["calm"] / "summary.json")["lossless"] is True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_of_the_sweep_alone_reaches_its_worker(
    run_here: Command, tmp_path: Path, guest: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    marker = tmp_path / "slow"

    def interrupt() -> None:
        until(lambda: marker.exists() and marker.read_text(encoding="utf-8").isdigit())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run_here(*SWEEP, *guest, "+drafter.params.mood=slow,merry") == code
    thread.join()
    assert not alive(int(marker.read_text(encoding="utf-8")))
    (folder,) = by_mood(tmp_path).values()
    assert failure_of(folder) == "interrupted"


def test_terminated_worker_records_its_run_and_is_replaced(
    run_here: Command, tmp_path: Path, guest: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "slow"

    def terminate() -> None:
        until(lambda: marker.exists() and marker.read_text(encoding="utf-8").isdigit())
        os.kill(int(marker.read_text(encoding="utf-8")), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    assert run_here(*SWEEP, *guest, "+drafter.params.mood=slow,merry") == 1
    thread.join()
    folders = by_mood(tmp_path)
    assert failure_of(folders["slow"]) == "interrupted"
    assert status_of(folders["merry"]) is Status.DONE
    assert "interrupted: its process was sent SIGTERM" in capfd.readouterr().err


WITHOUT_TORCH = """
import sys

from experiments import run

if __name__ == "__main__":
    assert run.main(sys.argv[1:]) == 0
    assert not {"torch", "backends", "drafters"} & set(sys.modules)
"""


def test_parent_of_a_sweep_imports_no_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *SWEEP, "target=toy", "drafter=ngram,none", "engine.threads=1"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(CONF.parent)}, check=True, timeout=120)


ONE_TASK = """
import json
import sys
from pathlib import Path

from experiments.supervised import Supervisor, Task

config = json.loads(sys.argv[1])
Supervisor().run(Task(config=config, folder=Path("run").resolve(), shared_baselines=None, cwd=Path.cwd()))
"""


def test_worker_ends_and_says_so_when_its_sweep_is_killed(tmp_path: Path, guest: tuple[str, ...]) -> None:
    config = composed(*guest, "+drafter.params.mood=slow", "baseline=off")
    process = subprocess.Popen([sys.executable, "-c", ONE_TASK, json.dumps(config)], cwd=tmp_path)
    marker = tmp_path / "slow"
    try:
        until(lambda: marker.exists() and marker.read_text(encoding="utf-8").isdigit())
    finally:
        process.kill()
        process.wait()
    until(lambda: not alive(int(marker.read_text(encoding="utf-8"))))
    assert failure_of(tmp_path / "run") == "interrupted"


def test_worker_killed_between_two_jobs_is_replaced(tmp_path: Path) -> None:
    """Nothing was running, so nothing failed."""
    supervisor = Supervisor()
    config = composed("target=toy", "drafter=ngram")
    pids = []
    for name in ("one", "two"):
        supervisor.run(Task(config=config, folder=tmp_path / name, shared_baselines=None, cwd=tmp_path))
        pids.append(read_json(tmp_path / name / "status.json")["pid"])
        os.kill(pids[-1], signal.SIGKILL)
        until(lambda: not alive(pids[-1]))
    supervisor.close()
    assert len(set(pids)) == 2
    assert {status_of(tmp_path / name) for name in ("one", "two")} == {Status.DONE}


def composed(*overrides: str) -> dict:
    """A configuration as plain values."""
    schemas.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[*SWEEP[1:], *overrides, "engine.threads=1"])
    return OmegaConf.to_container(config, resolve=True)


def until(holds: Callable[[], bool], *, within_s: float = 40.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
