"""``python -m experiments.dash FOLDER... [port=8321]``: a page over run folders that follows a sweep while it runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.command import obey
from specdec.errors import ConfigError

DEFAULT_PORT = 8321
MAX_PORT = 65535
USAGE = f"""usage: specdec dash FOLDER... [port={DEFAULT_PORT}]

Serves a page at http://127.0.0.1:{DEFAULT_PORT}/ with the jobs of the sweeps below the folders (queued, running,
failed, done), how far each is, and the report over what is done. The page follows by itself.

Only this machine can reach it, it changes nothing, and it reads nothing outside of the folders. Ctrl-C ends it.

  FOLDER     a run folder, or any folder above run folders: outputs, multirun/SWEEP
  port=N     0 takes any free port"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a command line asks for."""

    folders: tuple[Path, ...]
    port: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    return obey(arguments, USAGE, lambda given: _serve(wanted(given)))


def wanted(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises ConfigError."""
    folders: list[Path] = []
    port = DEFAULT_PORT
    for word in arguments:
        if word.startswith("port="):
            port = _port(word.removeprefix("port="))
        elif Path(word).is_dir():
            folders.append(Path(word))
        else:
            hint = "; the only key is port=N" if "=" in word or word.startswith("-") else ""
            raise ConfigError(f"{word}: there is no such folder{hint}")
    if not folders:
        raise ConfigError(f"name at least one folder: specdec dash FOLDER... [port={DEFAULT_PORT}]")
    return Wanted(folders=tuple(folders), port=port)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= MAX_PORT):
        raise ConfigError(f"port must be 0 to {MAX_PORT}, got {text!r}")
    return int(text)


def _serve(asked: Wanted) -> None:
    # Imported here, so that --help is there at once.
    from experiments.dash.server import make_server

    try:
        server = make_server(asked.folders, port=asked.port)
    except OSError as error:
        raise ConfigError(f"port={asked.port} cannot be used: {error.strerror}; choose another, or port=0") from None
    with server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("", flush=True)


if __name__ == "__main__":
    sys.exit(main())
