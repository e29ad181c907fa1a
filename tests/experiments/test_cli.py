"""The console command: help without imports, and mistakes in one line."""

import subprocess
import sys
import time

import pytest

from experiments import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rum"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: there is no command 'rum'; nearest: run")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_imports_neither_torch_nor_a_backend(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom experiments import cli\n"
        f"try:\n    code = cli.main({arguments!r})\nexcept SystemExit as end:\n    code = end.code\n"
        "assert not code and 'torch' not in sys.modules and 'backends' not in sys.modules\n"
    )
    started = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "specdec" in result.stdout
    assert time.perf_counter() - started < 20, "help must not load models"
