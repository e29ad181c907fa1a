"""Kept: the error of a block, kept instead of raised, so that what comes after it still happens."""

import traceback
from types import TracebackType

from specdec.errors import SpecDecError


class Kept:
    """Enter it around what may fail in any way; an interrupt by the user passes through."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> "Kept":
        self.error = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        self.error = error
        return True

    @property
    def line(self) -> str:
        """The error in one line, and an empty text without one; an error of this project needs no name of a class."""
        if self.error is None:
            return ""
        if isinstance(self.error, SpecDecError):
            return " ".join(str(self.error).split())
        return " ".join(traceback.format_exception_only(self.error)[-1].split())
