"""Progress of a run as one line of a terminal; in a pipe nothing at all.

It is drawn only when it is told something, between rounds, and by no thread of its own: rounds are timed.
"""

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Progress:
    """Enter it for the time of a run; the line is gone afterwards, and a result may be printed.

    label  stands before everything, for example which job of a sweep it is
    """

    def __init__(self, console: Console | None = None, *, label: str = "") -> None:
        self._prefix = f"{label}: " if label else ""
        self._console = Console(stderr=True) if console is None else console
        self._live: Live | None = None
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

    def begin(self, what: str, *, total: int = 0) -> None:
        """Say what is done now, of ``total`` requests or, with 0, of nothing that can be counted."""
        self._what, self._num_done, self._total = what, 0, total
        self._draw()

    def advance(self) -> None:
        """One more request is done."""
        self._num_done += 1
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        count = f": {self._num_done} of {self._total} requests" if self._total else " ..."
        self._live.update(Text(f"{self._prefix}{self._what}{count}", no_wrap=True, overflow="ellipsis"), refresh=True)
