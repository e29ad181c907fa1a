"""``python -m experiments.report FOLDER... [out=report.html]``: a table on the terminal, and one page over all runs."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec.errors import ConfigError, SpecDecError

DEFAULT_OUT = "report.html"
EXIT_MISTAKE = 2
USAGE = f"""usage: specdec report FOLDER... [out={DEFAULT_OUT}]

Finds every run below the folders, prints a table and writes one HTML file that needs no network.
Runs that are not finished, failed or damaged are listed as such.

  FOLDER     a run folder, or any folder above run folders: outputs, multirun/SWEEP
  out=FILE   where the page goes; an earlier report there is replaced, any other file is not"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a command line asks for."""

    folders: tuple[Path, ...]
    out: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "-h" in given or "--help" in given:
        print(USAGE)
        return 0
    try:
        _report(wanted(given))
    except (SpecDecError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_MISTAKE
    return 0


def wanted(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises ConfigError for what is not a folder and not ``out=FILE``."""
    folders: list[Path] = []
    out = DEFAULT_OUT
    for argument in arguments:
        if argument.startswith("out="):
            out = argument.removeprefix("out=")
        elif Path(argument).is_dir():
            folders.append(Path(argument))
        else:
            hint = "; the only key is out=FILE" if "=" in argument or argument.startswith("-") else ""
            raise ConfigError(f"{argument}: there is no such folder{hint}")
    if not folders:
        raise ConfigError(f"name at least one folder: specdec report FOLDER... [out={DEFAULT_OUT}]")
    if not out:
        raise ConfigError(f"out= is empty; give a file, for example out={DEFAULT_OUT}")
    return Wanted(folders=tuple(folders), out=Path(out))


def _report(asked: Wanted) -> None:
    # Imported here, so that --help is there at once.
    from experiments.report.collect import collect
    from experiments.report.page import MARK, page
    from experiments.report.tables import show

    _check_out(asked.out, MARK)
    found = collect(asked.folders)
    if not found.finished and not found.unfinished:
        raise ConfigError(f"there is no run folder below {', '.join(map(str, asked.folders))}")
    show(found)
    _write(asked.out, page(found))
    print(f"report: {asked.out}")


def _check_out(out: Path, mark: str) -> None:
    """Raise ConfigError when the page cannot go there, before any work."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"out={out}: {'is a folder' if out.is_dir() else 'its folder does not exist'}; name a file")
    if out.exists() and mark.encode() not in out.read_bytes()[:1000]:
        raise ConfigError(f"out={out}: this file is no report and would be lost; choose another name")


def _write(out: Path, text: str) -> None:
    """Replace ``out`` in one step."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
