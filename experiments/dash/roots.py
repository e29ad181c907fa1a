"""Roots: the folders that may be looked at, and files of runs below them; nothing leads out of them."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from experiments.report.collect import run_folders
from experiments.run_folder import CONFIG, ENVIRONMENT, OUTPUTS, PROGRESS, STATUS, STEPS, SUMMARY
from experiments.sweep_plan import JOBS
from specdec.errors import SpecDecError

SHOWN = (STATUS, CONFIG, ENVIRONMENT, SUMMARY, STEPS, OUTPUTS)
"""Files of a run that are served; a log of a tracker or a checkpoint is not."""
READ = (*SHOWN, PROGRESS, JOBS)
MAX_BYTES = 1 << 20


class NotServedError(SpecDecError, ValueError):
    """A path names nothing that may be served."""


class Roots:
    """Folders given on a command line; holds them as they were then, links resolved."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))

    def run_paths(self) -> tuple[list[Path], list[Path]]:
        """Run folders below the roots, each once; and those left out, since a file in them leads out of the roots."""
        paths = sorted({path for root in self.folders for path in run_folders(root)})
        left_out = [path for path in paths if not self._is_inside(path)]
        return [path for path in paths if path not in left_out], left_out

    def sweep_paths(self) -> list[Path]:
        """Folders below the roots that hold the plan of a sweep."""
        found = {Path(place) for root in self.folders for place, _, names in os.walk(root) if JOBS in names}
        return sorted(path for path in found if self._is_inside(path))

    def _is_inside(self, path: Path) -> bool:
        return all(self._below_root(path / name) for name in READ)

    def _below_root(self, path: Path) -> bool:
        real = path.resolve()
        return any(real.is_relative_to(root) for root in self.folders)

    def url_of(self, path: Path, name: str) -> tuple[int, str] | None:
        """Number of the root and path below it of a file of a run; None for a run that is in none."""
        for number, root in enumerate(self.folders):
            if path.is_relative_to(root):
                return number, (path.relative_to(root) / name).as_posix()
        return None

    def read(self, number: str, relative: str) -> bytes:
        """The file of a run, of a long one the last MAX_BYTES; raises NotServedError.

        The file that was opened is judged, not its name: a name may become a link between a look and a use.
        """
        if not (number.isdecimal() and int(number) < len(self.folders)):
            raise NotServedError("there is no such folder")
        parts = relative.split("/")
        if "\0" in relative or "\\" in relative or not all(parts) or {".", ".."} & set(parts) or parts[-1] not in SHOWN:
            raise NotServedError("there is no such file of a run")
        root = self.folders[int(number)]
        try:
            handle = os.open(root.joinpath(*parts), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise NotServedError("there is no such file of a run") from None
        with os.fdopen(handle, "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            real = Path(os.path.realpath(f"/proc/self/fd/{file.fileno()}"))
            if not regular or not real.is_relative_to(root):
                raise NotServedError("there is no such file of a run")
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_BYTES))
            return file.read(MAX_BYTES)
