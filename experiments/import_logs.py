"""``python -m experiments.import_logs vllm|sglang FILE... out=FOLDER``: another engine's statistics as a run folder."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.command import obey
from experiments.mistakes import nearest
from specdec.errors import ConfigError

ENGINES = ("vllm", "sglang")
MAX_SHOWN = 10
KEYS = {"out": "", "drafter": "unnamed", "model": "", "drafts": "sometimes"}
USAGE = """usage: specdec import_logs vllm|sglang FILE... out=FOLDER [drafter=NAME] [model=NAME] [drafts=always]

Reads what an engine says of its speculative decoding into a run folder, for specdec report and specdec compare.

  vllm    log ("SpecDecoding metrics: ..."), /metrics (the last of several scrapes less the first),
          JSON of vllm bench serve --save-result
  sglang  log ("Decode batch ... accept len: ..."), /metrics, JSON of responses with meta_info, of /get_server_info or
          of sglang.bench_serving

  out=FOLDER      a new folder
  drafter=NAME    how the report calls the drafter, for example eagle3
  model=NAME      the target, where the files do not say it
  drafts=always   no step goes without a draft, as with MTP and EAGLE: vLLM does not count such steps, and without this
                  its tokens per step are not known

All files of one call have the same form. What they do not say is null in summary.json, and listed there. The formats
are those of the engines' documentation, untested against a live engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a command line asks for."""

    engine: str
    files: tuple[Path, ...]
    out: Path
    drafter: str
    model: str
    every_step_drafts: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    return obey(arguments, USAGE, lambda given: _import(wanted(given)))


def wanted(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises ConfigError."""
    files: list[Path] = []
    settings = dict(KEYS)
    for word in arguments[1:]:
        key, equals, value = word.partition("=")
        if equals and key in settings:
            settings[key] = value.strip()
        elif equals and key.isidentifier() and not Path(word).exists():
            raise ConfigError(f"unknown key {key}{nearest(key, settings)}: the keys are {', '.join(settings)}")
        else:
            files.append(Path(word))
    if not arguments or arguments[0] not in ENGINES:
        said = f", got {arguments[0]!r}" if arguments else ""
        raise ConfigError(f"the first word must be one of {', '.join(ENGINES)}{said}")
    if not files or not settings["out"]:
        raise ConfigError(f"name files and a new folder: specdec import_logs {arguments[0]} FILE... out=FOLDER")
    if settings["drafts"] not in ("always", "sometimes"):
        raise ConfigError(f"drafts must be one of always, sometimes, got {settings['drafts']!r}")
    out = Path(settings["out"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} is there already: name a new folder, nothing is overwritten")
    return Wanted(
        engine=arguments[0],
        files=tuple(files),
        out=out,
        drafter=settings["drafter"],
        model=settings["model"],
        every_step_drafts=settings["drafts"] == "always",
    )


def _import(asked: Wanted) -> None:
    # Imported here, so that --help is there at once.
    from experiments.imports import sglang, vllm
    from experiments.imports.folder import Origin, write_folder
    from experiments.imports.reading import read_text

    texts = [read_text(path) for path in asked.files]
    forms = {text.form for text in texts}
    if len(forms) > 1:
        raise ConfigError(f"these files have several forms ({', '.join(sorted(forms))}): import each on its own")
    found = {vllm.NAME: vllm.read, sglang.NAME: sglang.read}[asked.engine](texts)
    for problem in found.problems[:MAX_SHOWN]:
        print(f"warning: {problem}; left out", file=sys.stderr)
    if len(found.problems) > MAX_SHOWN:
        print(f"warning: {len(found.problems) - MAX_SHOWN} more lines are left out", file=sys.stderr)
    if found.is_empty:
        names = ", ".join(map(str, asked.files))
        raise ConfigError(f"{names}: no speculative statistics of {asked.engine} were found (read as {texts[0].form})")
    origin = Origin(
        engine=asked.engine,
        files=asked.files,
        drafter=asked.drafter,
        model=asked.model,
        every_step_drafts=asked.every_step_drafts,
    )
    figures = write_folder(asked.out, origin, found)
    for note in (*found.notes, *figures.notes):
        print(f"note: {note}")
    print(f"run folder: {asked.out}")


if __name__ == "__main__":
    sys.exit(main())
