"""Command line of the dashboard: mistakes are one line, and it serves until it is interrupted."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from experiments.dash.command import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name at least one folder"),
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "out=x"], "the only key is port=N"),
        ([".", "--public"], "the only key is port=N"),
        ([".", "port=x"], "port must be 0 to 65535, got 'x'"),
        ([".", "port=70000"], "port must be 0 to 65535"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([str(tmp_path), f"port={taken.getsockname()[1]}"]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.dash", str(tmp_path), "port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address.group(0), timeout=20) as answer:
            assert b"specdec dash" in answer.read()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
        assert (process.returncode, error) == (0, "")
    finally:
        process.kill()
        process.communicate()
