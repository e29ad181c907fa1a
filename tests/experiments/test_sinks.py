"""Trackers: told of a finished run within bounded time, and whatever they do the run is complete."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest

from experiments import run
from experiments.run_folder import Status, read_json, status_of
from experiments.sinks.publish import publish, sinks_of
from experiments.sinks.record import read_record
from specdec.errors import ConfigError

Command = Callable[..., int]
TOY = ("target=toy", "drafter=nextn", "drafter.num_draft_tokens=2", "+experiment=smoke", "engine.repeats=1")
WANDB = {"_target_": "experiments.sinks.wandb_sink.WandbSink", "timeout_s": 30.0}
KEY = "a" * 40

GUEST = """
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GuestSink:
    mood: str = "calm"
    package: str = "json"
    extra: str = "guest"
    timeout_s: float = 20.0

    def fallback(self):
        return GuestSink(mood="calm") if self.mood == "shy" else None

    def publish(self, record):
        if self.mood in ("angry", "shy"):
            raise RuntimeError("no thanks")
        if self.mood == "slow":
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(record.folder, "pids").write_text(str(helper.pid))
            time.sleep(60)
        if not record.is_done:
            Path(record.folder, "told").write_text(f"{record.group} {record.status} {record.error}")
            return
        Path(record.folder, "told").write_text(f"{record.group} {record.name} {record.scalars['tokens_per_step']:.3f}")
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "finished"
    assert run.main([*TOY, f"hydra.run.dir={folder}", "engine.threads=1"]) == 0
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the run to publish."""
    return Path(copytree(original, tmp_path / "finished"))


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Settings of a tracker from a module outside of the project."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "guest_sink.py").write_text(GUEST, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    return lambda **settings: {"jsonl": {}, "guest": {"_target_": "guest_sink.GuestSink", **settings}}


def test_record_has_every_number_and_both_tables(folder: Path) -> None:
    record = read_record(folder, group="night")
    summary = read_json(folder / "summary.json")
    assert (record.name, record.group) == ("finished", "night")
    assert record.scalars["tokens_per_step"] == summary["tokens_per_step"]["value"]
    assert record.scalars["lossless"] == 1
    assert record.scalars["ms_per_round/verify"] > 0
    assert "schema_version" not in record.scalars
    positions, categories = record.tables["by_position"], record.tables["by_category"]
    assert [row[0] for row in positions.rows] == [1, 2]
    assert positions.rows[0][1:3] == (summary["survival"][0]["value"], summary["survival"][0]["n"])
    assert len(categories.rows) == 2 and len(categories.columns) == len(categories.rows[0])
    assert record.report().startswith("<!")


def test_tracker_is_told_once_and_leaves_nothing_beside(
    folder: Path, guest: Callable[..., dict], capsys: pytest.CaptureFixture[str]
) -> None:
    publish(guest(), folder, group="night")
    value = read_json(folder / "summary.json")["tokens_per_step"]["value"]
    assert (folder / "told").read_text(encoding="utf-8") == f"night finished {value:.3f}"
    assert capsys.readouterr().err == ""
    assert not list(folder.glob("logger.*"))


DRAFTER = """
import os
import signal
from dataclasses import dataclass

from specdec.api import DrafterNeeds


@dataclass(frozen=True, kw_only=True)
class BadConfig:
    mood: str = "angry"
    num_draft_tokens: int = 2
    needs = DrafterNeeds()

    def build(self, setup):
        if self.mood == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("no drafts today")
"""


def test_tracker_is_told_of_failed_and_killed_jobs_of_a_sweep(
    run_here: Command, tmp_path: Path, guest: Callable[..., dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "bad_drafter.py").write_text(DRAFTER, encoding="utf-8")
    tracked = f"+logger.guest._target_={guest()['guest']['_target_']}"
    drafter = ("drafter=custom", "drafter._target_=bad_drafter.BadConfig", "+drafter.params.mood=angry,killed")
    sweep = ("-m", "target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4")
    assert run_here(*sweep, *drafter, tracked, "engine.repeats=1") == 1
    told = sorted(path.read_text(encoding="utf-8") for path in tmp_path.glob("multirun/adhoc/*/told"))
    assert told[0] == "adhoc failed RuntimeError: no drafts today"
    assert told[1].startswith("adhoc failed killed: its process was ended by SIGKILL")
    assert len(told) == 2


@pytest.mark.parametrize(("mood", "told"), [("angry", False), ("shy", True)])
def test_tracker_that_fails_is_one_warning_and_its_fallback_is_tried(
    folder: Path, guest: Callable[..., dict], capsys: pytest.CaptureFixture[str], mood: str, told: bool
) -> None:
    publish(guest(mood=mood), folder, group="")
    said = capsys.readouterr().err
    assert said.startswith("warning: logger=guest: RuntimeError: no thanks") and said.count("\n") == 1
    assert "the run folder is complete" in said
    assert (folder / "told").exists() is told


def test_tracker_that_never_answers_is_given_up_with_all_its_processes(
    folder: Path, guest: Callable[..., dict], capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    publish(guest(mood="slow", timeout_s=4.0), folder, group="")
    assert time.monotonic() - started < 15
    assert "no answer within 4 s" in capsys.readouterr().err
    helper = folder / "pids"
    if helper.exists():  # a busy machine may not have come that far
        stat = Path(f"/proc/{helper.read_text(encoding='utf-8')}/stat")
        assert not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_missing_package_is_named_with_its_extra_before_the_run(
    run_here: Command, tmp_path: Path, guest: Callable[..., dict], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = guest()["guest"]["_target_"]
    added = ("+logger.guest._target_=" + settings, "+logger.guest.package=no_such_package")
    assert run_here(*TOY, *added) == 2
    error = capsys.readouterr().err
    assert "logger=guest needs the package no_such_package: pip install 'specdec-research[guest]'" in error
    assert not (tmp_path / "outputs").exists()


def test_tracker_that_cannot_be_made_is_named(guest: Callable[..., dict]) -> None:
    with pytest.raises(ConfigError, match="logger.guest: "):
        list(sinks_of(guest(colour="red")))


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of anybody's, and no settings from the environment."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def offline_runs(folder: Path) -> list[Path]:
    return list(folder.glob("wandb/offline-run-*/run-*.wandb"))


@pytest.mark.usefixtures("no_home")
def test_wandb_is_offline_and_needs_no_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    publish({"wandb": WANDB}, folder, group="night")
    assert capsys.readouterr().err == ""
    (kept,) = offline_runs(folder)
    content = kept.read_bytes()
    assert b"tokens_per_step" in content and b"night" in content and b"by_position" in content


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("trouble", ["no key", "no network", "no answer"])
def test_wandb_online_in_trouble_falls_back_to_offline_once(
    folder: Path,
    silent_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trouble: str,
) -> None:
    pytest.importorskip("wandb")
    if trouble != "no key":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    # Nothing listens at the discard port.
    monkeypatch.setenv("WANDB_BASE_URL", silent_server if trouble == "no answer" else "http://127.0.0.1:9")
    started = time.monotonic()
    publish({"wandb": {**WANDB, "mode": "online", "timeout_s": 3.0, "report": False}}, folder, group="")
    assert time.monotonic() - started < 3 + 40
    said = capsys.readouterr().err
    assert said.startswith("warning: logger=wandb: ") and said.count("\n") == 1
    assert "it is kept offline below" in said
    assert len(offline_runs(folder)) == 1
    assert status_of(folder) is Status.DONE


def test_tensorboard_draws_scalars_and_positions(folder: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = {"_target_": "experiments.sinks.tensorboard_sink.TensorboardSink"}
    publish({"tensorboard": settings}, folder, group="")
    read = events.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    value = read_json(folder / "summary.json")["tokens_per_step"]["value"]
    assert read.Scalars("tokens_per_step")[0].value == pytest.approx(value)
    assert [event.step for event in read.Scalars("by_position/survival")] == [1, 2]


def test_trackio_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    publish({"trackio": {"_target_": "experiments.sinks.trackio_sink.TrackioSink"}}, folder, group="night")
    assert list((tmp_path / "trackio").rglob("*.db"))
    assert not list(folder.glob("logger.*"))
