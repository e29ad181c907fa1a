"""Progress of a run: one line of a terminal that changes, or now and then a line of a pipe; and a file for others.

All change only when they are told something, between rounds, and by no thread of their own: rounds are timed.
"""

import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.run_folder import write_json

FILE_EVERY_S = 0.5
"""The file is written at most this often, since a request may take a millisecond."""
NUM_LINES = 10
"""A pipe is told of every tenth of the requests,"""
LINE_EVERY_S = 10.0
"""and of a request after this time,"""
QUIET_S = 2.0
"""but never sooner than this after the line before."""


class Lines:
    """When a pipe is told again; keeps when it was told last, and of how many requests."""

    def __init__(self) -> None:
        self._told_s, self._tenth = -inf, 0

    def due(self, num_done: int, total: int, *, at_s: float) -> bool:
        """Whether a line is due now; then it counts as told."""
        tenth = num_done * NUM_LINES // total
        quiet_s = at_s - self._told_s
        is_due = quiet_s >= (QUIET_S if num_done < 2 or tenth != self._tenth else LINE_EVERY_S)
        if is_due:
            self._told_s, self._tenth = at_s, tenth
        return is_due


class Progress:
    """Enter it for the time of a run; a terminal's line is gone afterwards, and a result may be printed.

    label  stands before everything, for example which job of a sweep it is
    file   says the same as JSON; gone afterwards; left out without a word where it cannot be written
    clock  seconds since whenever
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        label: str = "",
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = f"{label}: " if label else ""
        self._console = Console(stderr=True) if console is None else console
        self._live: Live | None = None
        self._file, self._written_at = file, 0.0
        self._what, self._num_done, self._total = "", 0, 0
        self._clock, self._begun_at, self._lines = clock, 0.0, Lines()

    def __enter__(self) -> "Progress":
        if self._console.file.isatty():
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def begin(self, what: str, *, total: int = 0) -> None:
        """Say what is done now, of ``total`` requests or, with 0, of nothing that can be counted."""
        self._what, self._num_done, self._total = what, 0, total
        self._begun_at = self._clock()
        self._draw()
        self._write()

    def advance(self) -> None:
        """One more request is done."""
        self._num_done += 1
        self._draw()
        if time.monotonic() - self._written_at > FILE_EVERY_S or self._num_done == self._total:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        self._written_at = time.monotonic()
        try:
            write_json(self._file, {"what": self._what, "num_done": self._num_done, "total": self._total})
        except OSError:
            # A full disk ends the run where it writes its rows, and says so there.
            pass

    def _draw(self) -> None:
        if self._live is None:
            if self._total and self._lines.due(self._num_done, self._total, at_s=self._clock()):
                self._print()
            return
        count = f": {self._num_done} of {self._total} requests" if self._total else " ..."
        self._live.update(Text(f"{self._prefix}{self._what}{count}", no_wrap=True, overflow="ellipsis"), refresh=True)

    def _print(self) -> None:
        line = f"{self._prefix}{self._what}: {self._num_done} of {self._total} requests"
        if self._num_done:
            spent_s = self._clock() - self._begun_at
            left_s = spent_s / self._num_done * (self._total - self._num_done)
            line += f" in {spent_s:.0f} s" + (f", about {left_s:.0f} s left" if self._num_done < self._total else "")
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
