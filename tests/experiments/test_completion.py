"""Shell completion: sub-commands, groups, options and keys, through Hydra's own plug-ins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import cli
from experiments.app import CONF


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("specdec r", {"run", "report", "reproduce"}),
        ("specdec run drafter=n", {"drafter=nextn", "drafter=ngram", "drafter=none"}),
        ("specdec run verifier=t", {"verifier=typical", "verifier=threshold"}),
        ("specdec run +sweep=dr", {"+sweep=draft_length", "+sweep=drafters"}),
        ("specdec run target=toy sampling.temp", {"sampling.temperature="}),
        ("specdec certify suite", {"suite="}),
        ("specdec compare a", set()),
    ],
)
def test_what_is_typed_so_far_is_completed(
    line: str, offered: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setattr(sys, "argv", ["specdec"])
    assert cli.main(["-sc", "query=bash"]) == 0
    said = set(capsys.readouterr().out.split())
    assert offered <= said
    word = line.split()[-1]
    assert all(choice.startswith(word) for choice in said)


def test_bash_completes_with_what_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "specdec"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.argv[0] = \'specdec\'\n'
                       'from experiments import cli; sys.exit(cli.main())" "$@"\n', encoding="utf-8")  # fmt: skip
    program.chmod(0o755)
    script = (
        'eval "$(specdec -sc install=bash)"\n'
        'complete -p specdec\nCOMP_LINE="specdec run logger=te" COMP_POINT=21 COMP_CWORD=2 WORDS=\n'
        'hydra_bash_completion\necho "${COMPREPLY[@]}"\n'
    )
    answer = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(CONF.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "hydra_bash_completion specdec" in answer.stdout
    assert answer.stdout.split()[-1] == "logger=tensorboard"
