"""A run that a job system ends with SIGTERM says so in its folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.app import CONF
from experiments.run_folder import STEPS, Status, failure_of, status_of
from experiments.termination import Terminated, termination_interrupts


def test_sigterm_is_an_interrupt_within_the_block_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), termination_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_run_ended_by_a_job_system_is_failed_and_has_an_exit_code(tmp_path: Path) -> None:
    long = ("sampling.max_new_tokens=60", "sampling.ignore_eos=true", "engine.repeats=99", "hydra.run.dir=stopped")
    common = ("target=toy", "drafter=ngram", "+experiment=smoke", "baseline=off")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *common, *long],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CONF.parent), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        rows = tmp_path / "stopped" / STEPS
        while not (rows.exists() and rows.stat().st_size):
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.05)
        # Twice, as timeout does.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143
    assert "run folder: " in said and "interrupted" in said and "Traceback" not in said
    assert status_of(tmp_path / "stopped") is Status.FAILED
    assert failure_of(tmp_path / "stopped") == "interrupted"
