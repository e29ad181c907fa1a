"""Progress of a run as one line of a terminal; in a pipe nothing at all.

It is drawn only when it is told something, between rounds, and by no thread of its own: rounds are timed.
"""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Enter it for the time of a run; the line is gone afterwards, and a result may be printed."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Progress":
        if self._console.file.isatty():
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None

    def begin(self, what: str, *, total: int | None = None) -> None:
        """Say what is done now, of ``total`` requests or of nothing that can be counted."""
        if self._bars is None:
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=total)
        self._bars.refresh()

    def advance(self) -> None:
        """One more request is done."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task)
            self._bars.refresh()
