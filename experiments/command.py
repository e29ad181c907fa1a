"""Command lines of folders and KEY=VALUE for the commands that only read run folders; imports no torch.

Exit codes: 0 as it should be, 1 not so, 2 a mistake or a folder that cannot be used.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.mistakes import nearest
from specdec.errors import ConfigError, SpecDecError

EXIT_GOOD = 0
EXIT_BAD = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A command line, split: folders in their order, and every key with its value or default."""

    folders: tuple[Path, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What a command takes.

    name      as in ``python -m experiments.NAME``
    folders   names of its folders, all needed
    settings  its keys with their defaults
    about     help text after the usage line
    """

    name: str
    folders: tuple[str, ...]
    settings: Mapping[str, str]
    about: str

    @property
    def usage(self) -> str:
        """The usage line."""
        return " ".join([f"usage: python -m experiments.{self.name}", *self.folders, *self._keys])

    @property
    def _keys(self) -> list[str]:
        return [f"[{key}={value or 'FOLDER'}]" for key, value in self.settings.items()]

    def obey(self, arguments: Sequence[str] | None, do: Callable[[Words], int]) -> int:
        """Call ``do`` with a command line; returns the exit code and leaves one line on stderr for a mistake."""
        return obey(arguments, f"{self.usage}\n\n{self.about.strip()}", lambda given: do(self.split(given)))

    def split(self, arguments: Sequence[str]) -> Words:
        """Folders and settings of a command line; raises ConfigError."""
        folders, settings = [], dict(self.settings)
        for word in arguments:
            key, equals, value = word.partition("=")
            if word.startswith("-"):
                raise ConfigError(f"unknown flag {word}: {self.usage}")
            if not (equals and key.isidentifier()):
                folders.append(Path(word))
            elif key in settings:
                settings[key] = value
            else:
                raise ConfigError(f"unknown key {key}{nearest(key, settings)}: {self.usage}")
        if len(folders) != len(self.folders):
            raise ConfigError(
                f"{self.name} takes {' and '.join(self.folders)}, got {len(folders)} folders: {self.usage}"
            )
        return Words(folders=tuple(folders), settings=settings)


def obey(
    arguments: Sequence[str] | None,
    usage: str,
    do: Callable[[list[str]], int | None],
    *,
    interrupted: str = "interrupted",
) -> int:
    """Call ``do`` with the words of a command line, or print ``usage`` for ``--help``; returns the exit code.

    A mistake, a file that cannot be used, and an interrupt, which says ``interrupted``, leave one line on stderr.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given):
        print(usage)
        return EXIT_GOOD
    try:
        return do(given) or EXIT_GOOD
    except SpecDecError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    except OSError as error:
        print(f"error: a file cannot be used: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_MISTAKE
