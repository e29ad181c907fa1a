"""``python -m experiments.query FOLDER... sql=QUESTION``: ask all runs below some folders, in DuckDB's SQL."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command import obey
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from experiments.tables import Tables

EXAMPLE = """SELECT split_part(d.value, '.', -1) AS drafter, TRY_CAST(k.value AS INT) AS k, count(*) AS runs,
              avg(tokens_per_step.value) AS tokens_per_step
       FROM summaries JOIN statuses USING (run) JOIN settings AS d USING (run)
       LEFT JOIN settings AS k ON k.run = d.run AND k.key = 'drafter.num_draft_tokens'
       WHERE status = 'done' AND d.key = 'drafter._target_' AND d.value <> 'drafters.none.NoneConfig'
       GROUP BY ALL ORDER BY ALL"""
"""Tokens per step by drafter and draft length, over finished runs, without baselines."""
USAGE = f"""usage: specdec query FOLDER... [sql=QUESTION] [out=FILE]

Asks all runs below the folders, also those that go on, in DuckDB's SQL; without a question, names the tables.

  sql=QUESTION  the question
  out=FILE      write the answer to a new file .csv, .parquet or .json instead of printing it

Tables: steps, outputs, summaries, environments, statuses, settings (run, key, value). The column run is the folder;
baselines are runs of their own, with the drafter none, and runs that go on or failed have rows in steps too. So, tokens
per step by drafter and draft length K of the finished runs, without their baselines:

  sql="{EXAMPLE}" """
FORMATS = (".csv", ".parquet", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a command line asks for; ``sql`` is empty without a question, ``out`` None without a file."""

    folders: tuple[Path, ...]
    sql: str
    out: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    return obey(arguments, USAGE, lambda given: _answer(asked(given)))


def asked(arguments: Sequence[str]) -> Asked:
    """Read a command line; raises ConfigError."""
    folders: list[Path] = []
    settings = {"sql": "", "out": ""}
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and key in settings:
            settings[key] = value.strip()
        elif Path(word).is_dir():
            folders.append(Path(word))
        else:
            raise ConfigError(f"{word}: there is no such folder; the keys are sql=QUESTION and out=FILE")
    if not folders:
        raise ConfigError("name at least one folder: specdec query FOLDER... [sql=QUESTION]")
    out = Path(settings["out"]) if settings["out"] else None
    if out is not None and not settings["sql"]:
        raise ConfigError(f"out={out} needs a question: sql=QUESTION")
    if out is not None and (out.exists() or out.suffix not in FORMATS):
        raise ConfigError(f"out={out} must be a new file that ends in one of {', '.join(FORMATS)}")
    return Asked(folders=tuple(folders), sql=settings["sql"], out=out)


def _answer(wanted: Asked) -> None:
    from experiments.tables import Tables

    with Tables(wanted.folders) as tables:
        for note in tables.notes():
            print(f"note: {note}", file=sys.stderr)
        if not wanted.sql:
            _show_tables(tables)
        elif wanted.out is not None:
            tables.rows(f"COPY ({wanted.sql.rstrip(';')}) TO '{str(wanted.out).replace(chr(39), chr(39) * 2)}'")
        else:
            print(tables.text(wanted.sql))


def _show_tables(tables: "Tables") -> None:
    from experiments.tables import NAMES

    for name in NAMES:
        columns = tables.rows(f"SELECT column_name FROM (DESCRIBE {name})")
        ((count,),) = tables.rows(f"SELECT count(*) FROM {name}")
        print(f"{name} ({count} rows): {', '.join(column for (column,) in columns)}")


if __name__ == "__main__":
    sys.exit(main())
