"""The console command: help without imports, and mistakes in one line."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_every_measurement_is_a_command() -> None:
    files = {path.stem for path in Path(cli.__file__).parent.glob("bench_*.py")}
    assert files == set(cli.BENCHES)


def test_measurement_of_a_gpu_without_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["bench_verify"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: this measures an NVIDIA GPU, and none was found") and error.count("\n") == 1


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rum"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: there is no command 'rum'; nearest: run")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_takes_less_than_a_second_and_imports_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from experiments import cli\n"
        f"assert cli.main({arguments!r}) == 0\n"
        "assert not {'torch', 'backends', 'drafters'} & set(sys.modules)\n"
    )
    before = _seconds_of_children()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    measures = arguments[0].startswith("bench_")
    assert f"python -m experiments.{arguments[0]}" in result.stdout if measures else result.stdout.startswith("usage: ")
    assert _seconds_of_children() - before < 1.0


def _seconds_of_children() -> float:
    """Processor time of finished child processes, which other load on the machine does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
