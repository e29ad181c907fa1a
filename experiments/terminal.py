"""The console that tables are printed on: as wide as the terminal, and in a pipe as wide as they are."""

from rich.console import Console

PIPE_WIDTH = 10_000
"""Wider than any table: what is read by a program or kept in a file has a line a row."""


def table_console(*, markup: bool = True) -> Console:
    """For stdout. A table that is wider than the terminal wraps there; none does without a terminal."""
    width = None if Console().is_terminal else PIPE_WIDTH
    return Console(highlight=False, markup=markup, width=width)
