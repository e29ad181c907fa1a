"""Progress: a line for a terminal that only moves when it is told, and now and then a line in a pipe."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from experiments.app import CONF
from experiments.progress import Progress

TOY = ("target=toy", "+experiment=smoke", "workload.limit=2", "engine.threads=1")


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def told(file: io.StringIO) -> list[str]:
    """What the file had after each step of a run of two requests."""
    seen = []
    with Progress(Console(file=file, width=100)) as progress:
        for step in (
            lambda: progress.begin("loading"),
            lambda: progress.begin("ngram", total=2),
            progress.advance,
            progress.advance,
        ):
            step()
            seen.append(file.getvalue())
    return seen


def test_terminal_sees_what_is_done_and_how_many_requests() -> None:
    loading, begun, one, both = told(Terminal())
    assert "loading" in loading and "0 of 2" not in loading
    assert "ngram" in begun and "0 of 2" in begun
    assert "1 of 2" in one and "2 of 2" not in one
    assert "2 of 2" in both


def test_file_says_the_same_and_is_gone_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with Progress(Console(file=io.StringIO()), file=file) as progress:
        progress.begin("ngram", total=2)
        assert json.loads(file.read_text(encoding="utf-8")) == {"what": "ngram", "num_done": 0, "total": 2}
        progress.advance()
        progress.advance()
        assert json.loads(file.read_text(encoding="utf-8"))["num_done"] == 2
    assert not file.exists()


def test_file_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    with Progress(Console(file=io.StringIO()), file=tmp_path / "gone" / "progress.json") as progress:
        progress.begin("ngram", total=1)
        progress.advance()


def test_nothing_is_drawn_between_two_calls() -> None:
    file = Terminal()
    with Progress(Console(file=file, width=100)) as progress:
        progress.begin("ngram", total=2)
        before = file.getvalue()
        time.sleep(0.3)  # longer than the period of a display that refreshes itself
        assert file.getvalue() == before


def lines_in_a_pipe(*, num_requests: int, request_s: float, label: str = "") -> list[str]:
    """What a pipe was told of a run whose requests take so long."""
    now_s, file = 0.0, io.StringIO()
    with Progress(Console(file=file, width=20), label=label, clock=lambda: now_s) as progress:
        progress.begin("loading")
        progress.begin("ngram", total=num_requests)
        for _ in range(num_requests):
            now_s += request_s
            progress.advance()
        progress.begin("summary")
    return file.getvalue().splitlines()


def test_pipe_is_told_of_every_tenth_with_an_estimate_of_the_rest() -> None:
    first, second, *others = lines_in_a_pipe(num_requests=40, request_s=2.0)
    assert first == "ngram: 0 of 40 requests"
    assert second == "ngram: 1 of 40 requests in 2 s, about 78 s left"
    assert others[:2] == [
        "ngram: 4 of 40 requests in 8 s, about 72 s left",
        "ngram: 8 of 40 requests in 16 s, about 64 s left",
    ]
    assert (len(others), others[-1]) == (10, "ngram: 40 of 40 requests in 80 s")


def test_pipe_is_told_every_ten_seconds_of_a_long_run_and_once_of_a_short_one() -> None:
    assert len(lines_in_a_pipe(num_requests=1000, request_s=1.0)) > 95
    assert lines_in_a_pipe(num_requests=100, request_s=0.01, label="job 2/3") == ["job 2/3: ngram: 0 of 100 requests"]


def test_run_in_a_pipe_tells_stderr_and_leaves_stdout_to_its_tables(
    run_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*TOY[:3]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("none (plain decoding): 0 of 2 requests\n")
    assert " of 2 requests" not in captured.out


def test_interrupted_run_shows_progress_says_so_and_names_its_folder(tmp_path: Path) -> None:
    """In a terminal, with a real Ctrl-C in the middle of the first decode."""
    ours, theirs = pty.openpty()
    long = ("sampling.max_new_tokens=60", "sampling.ignore_eos=true", "engine.repeats=99", "hydra.run.dir=stopped")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *TOY, *long],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CONF.parent), "TERM": "xterm", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    said = ""
    try:
        while "1 of 2" not in said:
            said += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
        said += drained(ours)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "loading" in said and "none (plain decoding)" in said
    assert f"run folder: {tmp_path / 'stopped'}" in said.replace("\r\n", "")
    assert "interrupted" in said and "Traceback" not in said
    for folder in (tmp_path / "stopped", tmp_path / "stopped" / "baseline"):
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        assert (status["status"], status["error"]) == ("failed", "interrupted")
        assert "traceback" not in status


def drained(terminal: int) -> str:
    """Everything that is still written until the other side is closed."""
    said = ""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            return said
        if not part:
            return said
        said += part.decode()
