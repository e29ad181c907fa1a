"""Every file and every command of the tutorial, in its order and in an empty folder."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch

from experiments.app import CONF

TUTORIAL = CONF.parent / "experiments" / "examples" / "TUTORIAL.md"
FENCE = re.compile(r"^```(\w+) ?(?:title=(\S+))?(?:exit=(\d))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: a file with its name, or commands with the exit code that they end with."""

    language: str
    title: str
    exit_code: int
    text: str


def blocks() -> list[Block]:
    found = FENCE.findall(TUTORIAL.read_text(encoding="utf-8"))
    return [Block(language=lang, title=title, exit_code=int(code or 0), text=text) for lang, title, code, text in found]


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        assert line.startswith("$ python -m "), line
        yield shlex.split(line.removeprefix("$ python -m "))


def install(block: Block, folder: Path) -> None:
    """What an installer leaves of the project that a pyproject.toml describes, as far as entry points go."""
    project = tomllib.loads(block.text)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["specdec.plugins"].items()]
    (info / "entry_points.txt").write_text("[specdec.plugins]\n" + "\n".join(lines) + "\n", encoding="utf-8")


def run(words: list[str], folder: Path) -> int:
    """A command of this project in this process, any other in one of its own."""
    module, *arguments = words
    if not module.startswith("experiments."):
        done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=120)
        print(done.stdout, done.stderr)
        return done.returncode
    name = "experiments.report.command" if module == "experiments.report" else module
    code = import_module(name).main(arguments)
    torch.set_num_threads(1)
    return code


def test_every_block_works_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(CONF.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = ""
    for block in blocks():
        if block.title:
            path = tmp_path / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "toml":
            install(block, tmp_path)
        if block.language == "console":
            for words in commands(block):
                assert run(words, tmp_path) == block.exit_code, (words, capsys.readouterr())
                captured = capsys.readouterr()
                said += captured.out + captured.err
    assert "error: not exact: " in said and "total variation" in said
    assert "frequent (frequent-drafts 1.0): drafter=frequent is my_drafter.FrequentConfig" in said
    runs = [path for path in (tmp_path / "multirun" / "adhoc").iterdir() if (path / "summary.json").exists()]
    assert len(runs) == 4 and (tmp_path / "report.html").exists()


def test_the_page_has_nothing_but_files_and_commands() -> None:
    found = blocks()
    assert len(found) == TUTORIAL.read_text(encoding="utf-8").count("\n```") // 2
    assert all(bool(block.title) != (block.language == "console") for block in found)


def test_logic_of_its_drafter_is_short() -> None:
    """Lines of the bodies of functions, without their descriptions."""
    (source,) = [block.text for block in blocks() if block.title == "my_drafter.py"]
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    lines = {
        line
        for function in functions
        for statement in function.body
        for line in range(statement.lineno, statement.end_lineno + 1)
    }
    assert len(lines) <= MOST_LINES
