"""Processes of a launcher after an interrupt: ended, and those that were there before are left."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from experiments.children import children_ended, descendants, is_alive

SLEEP = "import time; time.sleep(60)"
STUBBORN = """
import signal
import time

signal.signal(signal.SIGINT, lambda *_: None)
print("up", flush=True)
time.sleep(60)
"""
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).wait()"


@pytest.fixture
def earlier() -> Iterator[subprocess.Popen]:
    """A process from before the launch."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


def test_interrupt_ends_what_the_block_started_and_nothing_else(
    earlier: subprocess.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.children.END_S", 1.0)
    started: list[int] = []
    with pytest.raises(KeyboardInterrupt), children_ended():
        child = subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while len(descendants(child.pid)) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        started += [child.pid, *descendants(child.pid)]
        raise KeyboardInterrupt
    assert len(started) == 2
    assert not any(map(is_alive, started))
    assert is_alive(earlier.pid)
    child.wait()


def test_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.children.END_S", 1.0)
    with pytest.raises(KeyboardInterrupt), children_ended():
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        raise KeyboardInterrupt
    assert child.wait(10) < 0
    child.stdout.close()


def test_block_that_ends_well_leaves_its_processes(earlier: subprocess.Popen) -> None:
    with children_ended():
        child = subprocess.Popen([sys.executable, "-c", SLEEP])
    assert is_alive(child.pid)
    child.kill()
    child.wait()
