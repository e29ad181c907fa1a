"""Progress of a run as one line of a terminal, in a pipe nothing; and as a small file for who watches from outside.

Both change only when they are told something, between rounds, and by no thread of their own: rounds are timed.
"""

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.run_folder import write_json

FILE_EVERY_S = 0.5
"""The file is written at most this often, since a request may take a millisecond."""


class Progress:
    """Enter it for the time of a run; the line is gone afterwards, and a result may be printed.

    label  stands before everything, for example which job of a sweep it is
    file   says the same as JSON; gone afterwards; left out without a word where it cannot be written
    """

    def __init__(self, console: Console | None = None, *, label: str = "", file: Path | None = None) -> None:
        self._prefix = f"{label}: " if label else ""
        self._console = Console(stderr=True) if console is None else console
        self._live: Live | None = None
        self._file, self._written_at = file, 0.0
        self._what, self._num_done, self._total = "", 0, 0

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
            return
        count = f": {self._num_done} of {self._total} requests" if self._total else " ..."
        self._live.update(Text(f"{self._prefix}{self._what}{count}", no_wrap=True, overflow="ellipsis"), refresh=True)
