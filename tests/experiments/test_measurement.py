"""Command lines of measurements: help, what is refused, and a missing GPU, each without a traceback."""

import subprocess
import sys
from importlib import import_module

import pytest
import torch

from experiments import cli
from experiments.measurement import obey_bench

ABOUT = "What something takes."
ON_GPU = ("acceptance", "decode", "kernels", "linear", "prefill", "round", "verify")


def without_gpu(*arguments: str, done: list[list[str]] | None = None) -> int:
    kept = [] if done is None else done
    return obey_bench(
        arguments, kept.append, about=ABOUT, options=("--save", "--seeds="), words=("fp8",), without_gpu=None
    )


@pytest.mark.parametrize("name", cli.BENCHES)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_the_docstring(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(cli.COMMANDS[name][0])
    assert module.main([flag]) == 0
    assert module.__doc__ is not None and capsys.readouterr().out.strip() == module.__doc__.strip()


@pytest.mark.parametrize("name", cli.BENCHES)
def test_unknown_option_is_refused_before_anything_is_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(cli.COMMANDS[name][0]).main(["--sav"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "--sav" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ON_GPU)
def test_without_a_gpu_a_measurement_of_one_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert import_module(f"experiments.bench_{name}").main(["--save"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: this measures an NVIDIA GPU, and none was found") and error.count("\n") == 1
    assert ("--dry" in error) == (name in ("kernels", "round"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--sav", "unknown option --sav; nearest: --save (options: --save, --seeds=N)"),
        ("--save=1", "unknown option --save=1; nearest: --save (options"),
        ("--seeds", "unknown option --seeds; nearest: --seeds= (options"),
        ("fp9", "unknown word 'fp9'; nearest: fp8 (words: fp8)"),
    ],
)
def test_mistake_names_what_is_allowed(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert without_gpu(given) == 2
    assert said in capsys.readouterr().err


def test_allowed_words_reach_the_measurement() -> None:
    done: list[list[str]] = []
    assert without_gpu("--save", "--seeds=2", "fp8", done=done) == 0
    assert done == [["--save", "--seeds=2", "fp8"]]


def test_interrupt_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    assert obey_bench([], interrupted, about=ABOUT, without_gpu=None) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_module_itself_has_exit_codes() -> None:
    command = [sys.executable, "-m", "experiments.bench_verify", "--nothing"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_help_needs_no_triton() -> None:
    code = (
        "import sys\n"
        "from importlib import import_module\n"
        "sys.modules['triton'] = None\n"
        f"for name in {ON_GPU!r}:\n"
        "    assert import_module(f'experiments.bench_{name}').main(['--help']) == 0\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
