"""The console of tables: in a pipe a row is a line, in a terminal a table keeps to its width."""

import io
import re
import sys

import pytest
from rich.table import Table

from experiments.terminal import table_console

ESCAPES = re.compile("\x1b\\[[0-9;]*m")


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "fits"), [(Terminal, True), (io.StringIO, False)])
def test_table_wraps_in_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, stdout: type[io.StringIO], fits: bool
) -> None:
    file = stdout()
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    table = Table()
    table.add_column("settings " * 20)
    table.add_row("words " * 50)
    table_console().print(table)
    widths = [len(ESCAPES.sub("", line)) for line in file.getvalue().splitlines()]
    assert (max(widths) <= 80) == fits
    assert (len(widths) == 5) == (not fits)
