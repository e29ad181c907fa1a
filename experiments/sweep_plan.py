"""jobs.json of a sweep: which jobs it will do, also those that have no folder yet; runs nothing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.run_folder import HOST, FolderLock, read_json, write_json

JOBS = "jobs.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A job of a sweep.

    name       of its folder in the sweep's
    overrides  settings that the command line gave it
    pid, host  of the process that launches it
    """

    name: str
    overrides: tuple[str, ...]
    pid: int
    host: str

    @property
    def is_given_up(self) -> bool:
        """Whether the process that would launch it, one of this machine, is gone."""
        return self.host == HOST and not Path(f"/proc/{self.pid}").exists()


def write_plan(sweep: Path, jobs: Mapping[str, Sequence[str]]) -> None:
    """Add jobs, overrides by name of the folder, to those that other shards of the sweep have written."""
    with FolderLock(sweep, wait=True):
        known = {planned.name: planned for planned in read_plan(sweep)}
        known |= {
            name: Planned(name=name, overrides=tuple(lines), pid=os.getpid(), host=HOST) for name, lines in jobs.items()
        }
        content = [
            {"name": each.name, "overrides": list(each.overrides), "pid": each.pid, "host": each.host}
            for each in known.values()
        ]
        write_json(sweep / JOBS, content)


def read_plan(sweep: Path) -> tuple[Planned, ...]:
    """Jobs of a sweep in the order in which they were planned; nothing for a folder without a readable plan."""
    try:
        content = read_json(sweep / JOBS)
        return tuple(
            Planned(
                name=str(entry["name"]),
                overrides=tuple(map(str, entry["overrides"])),
                pid=int(entry["pid"]),
                host=str(entry["host"]),
            )
            for entry in content
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()
