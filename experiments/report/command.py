"""``python -m experiments.report FOLDER... [KEY=VALUE]``: a table on the terminal, one page over all runs, charts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.command import obey
from specdec.errors import ConfigError

DEFAULT_OUT = "report.html"
DEFAULT_OUT_DIR = "charts"
USAGE = f"""usage: specdec report FOLDER... [out={DEFAULT_OUT}] [pair=A,B] [export=svg|pdf] [out_dir=FOLDER]

Finds every run below the folders, prints a table and writes one HTML file that needs no network.
Runs that are not finished, failed or damaged are listed as such.

  FOLDER          a run folder, or any folder above run folders: outputs, multirun/SWEEP
  out=FILE        where the page goes; an earlier report there is replaced, any other file is not
  pair=A,B        numbers of the two runs that are compared on the same prompts; without it the report chooses them
  export=svg|pdf  write every chart as a file of its own, too; pdf needs the extra "report"
  out_dir=FOLDER  where these files go ({DEFAULT_OUT_DIR}); files of the same names are replaced"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a command line asks for; ``pair`` None lets the report choose, ``export`` is empty for no charts."""

    folders: tuple[Path, ...]
    out: Path
    pair: tuple[int, int] | None
    export: str
    out_dir: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    return obey(arguments, USAGE, lambda given: _report(wanted(given)))


def wanted(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises ConfigError for what is neither a folder nor one of the keys with a value."""
    folders: list[Path] = []
    settings = {"out": DEFAULT_OUT, "pair": "", "export": "", "out_dir": ""}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in settings:
            if not value:
                raise ConfigError(f"{key}= is empty; give a value, or leave it away")
            settings[key] = value
        elif Path(argument).is_dir():
            folders.append(Path(argument))
        else:
            keys = ", ".join(f"{name}=" for name in settings)
            hint = f"; the keys are {keys}" if equals or argument.startswith("-") else ""
            raise ConfigError(f"{argument}: there is no such folder{hint}")
    if not folders:
        raise ConfigError(f"name at least one folder: specdec report FOLDER... [out={DEFAULT_OUT}]")
    if settings["out_dir"] and not settings["export"]:
        raise ConfigError(f"out_dir={settings['out_dir']} needs export=svg or export=pdf")
    if settings["export"] not in ("", "svg", "pdf"):
        raise ConfigError(f"export must be svg or pdf, got {settings['export']!r}")
    return Wanted(
        folders=tuple(folders),
        out=Path(settings["out"]),
        pair=_pair(settings["pair"]),
        export=settings["export"],
        out_dir=Path(settings["out_dir"] or DEFAULT_OUT_DIR),
    )


def _pair(text: str) -> tuple[int, int] | None:
    numbers = [part.strip().removeprefix("#") for part in text.split(",")]
    if not text:
        return None
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or numbers[0] == numbers[1]:
        raise ConfigError(f"pair must be the numbers of two runs of the report, as in pair=1,2; got {text!r}")
    return int(numbers[0]), int(numbers[1])


def _report(asked: Wanted) -> None:
    # Imported here, so that --help is there at once.
    from experiments.report.collect import collect
    from experiments.report.export import converter, export
    from experiments.report.page import MARK, page
    from experiments.report.tables import show

    _check_out(asked.out, MARK)
    _check_out_dir(asked.out_dir)
    if asked.export:
        converter(asked.export)
    found = collect(asked.folders)
    if not found.finished and not found.unfinished:
        raise ConfigError(f"there is no run folder below {', '.join(map(str, asked.folders))}")
    text = page(found, pair=asked.pair)
    show(found)
    _write(asked.out, text)
    print(f"report: {asked.out}")
    if asked.export:
        print(f"charts: {len(export(text, asked.export, asked.out_dir))} files in {asked.out_dir}")


def _check_out(out: Path, mark: str) -> None:
    """Raise ConfigError when the page cannot go there, before any work."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"out={out}: {'is a folder' if out.is_dir() else 'its folder does not exist'}; name a file")
    if out.exists() and mark.encode() not in out.read_bytes()[:1000]:
        raise ConfigError(f"out={out}: this file is no report and would be lost; choose another name")


def _check_out_dir(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out_dir={folder}: is a file; name a folder")


def _write(out: Path, text: str) -> None:
    """Replace ``out`` in one step."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
