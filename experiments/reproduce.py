"""``python -m experiments.reproduce FOLDER``: run a finished run again and compare everything but times."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from experiments.checkpoints import folder_of
from experiments.command import EXIT_BAD, EXIT_GOOD, Command, Words
from experiments.fingerprint import inputs_of
from experiments.finished_run import FinishedRun, Record, read_run
from experiments.pairing import differing
from experiments.run_folder import OUTPUTS, STEPS
from experiments.workloads import workload_of
from specdec.errors import ConfigError, SpecDecError

COMMAND = Command(
    name="reproduce",
    folders=("FOLDER",),
    settings={"to": ""},
    about="""
Runs the configuration of a finished run again, in a folder of its own, and compares every row and output but for times.

  to=FOLDER    a new folder for the second run; by default outputs/DATE/TIME-SUFFIX

Exit code 0 if all is identical, 1 if something differs, 2 if the run cannot be repeated: its checkpoint, prompts or
code have changed, or its folder is no finished run.
""",
)
# Times, and what says only how a line is written.
NOT_COMPARED = ("draft_us", "verify_us", "other_us", "first_token_us", "total_us", "schema_version")


class ChangedInputsError(SpecDecError, ValueError):
    """What a run read is no longer what it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Lines of one file that are not the same in two runs: how many, of how many, and the first in words."""

    file: str
    num: int
    total: int
    first: str

    def __str__(self) -> str:
        return f"{self.file}: {self.num} of {self.total} lines differ; the first: {self.first}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return COMMAND.obey(arguments, reproduce)


def reproduce(words: Words) -> int:
    """Run again and compare; raises SpecDecError for a run that cannot be repeated."""
    (folder,) = words.folders
    old = read_run(folder)
    to = Path(words.settings["to"]) if words.settings["to"] else _new_folder()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"to={to} is there already: name a new folder, nothing is overwritten")
    check_inputs(old)
    # Imported here, since it imports torch and --help must not wait for that.
    from experiments.job import Worker

    # A tracker knows this run already.
    Worker().run({**old.config, "logger": {}}, to)
    new = read_run(to)
    for note in (*old.notes, *environment_notes(old, new)):
        print(f"note: {note}")
    found = mismatches(old, new)
    for mismatch in found:
        print(f"differs: {mismatch}")
    if found:
        return EXIT_BAD
    print(f"identical: {len(old.rows)} rows and {len(old.outputs)} outputs of {folder}, but for times")
    return EXIT_GOOD


def check_inputs(run: FinishedRun) -> None:
    """Raise ChangedInputsError, naming every hash that is no longer the same."""
    checkpoint = folder_of(run.config["target"]["checkpoint"])
    now = inputs_of(checkpoint, workload_of(run.config["workload"]).hash)
    here = {"checkpoint_hash": now.checkpoint, "prompt_set_hash": now.prompts, "code_hash": now.code}
    changed = [
        f"{name} was {run.environment[name] or 'empty'} and is {value or 'empty'}"
        for name, value in here.items()
        if run.environment[name] != value
    ]
    if changed:
        commit = run.environment.get("git_commit")
        hint = f" (it ran at commit {commit})" if commit else ""
        raise ChangedInputsError(f"{run.folder} cannot be repeated: {'; '.join(changed)}{hint}")


def environment_notes(old: FinishedRun, new: FinishedRun) -> list[str]:
    """Versions, devices and the like that are not those of the first run."""
    return [f"{entry}: tokens may differ for that" for entry in differing(old.environment, new.environment)]


def mismatches(old: FinishedRun, new: FinishedRun) -> list[Mismatch]:
    """Every file in which two runs differ; a line that is torn in the old run is not compared."""
    found = [
        _mismatch(STEPS, _by_step(old), _by_step(new), torn=STEPS in old.torn),
        _mismatch(OUTPUTS, _by_turn(old), _by_turn(new), torn=OUTPUTS in old.torn),
    ]
    return [mismatch for mismatch in found if mismatch is not None]


def _by_step(run: FinishedRun) -> dict[str, Record]:
    return {f"request {row.request_id} turn {row.turn} step {row.step}": asdict(row) for row in run.rows}


def _by_turn(run: FinishedRun) -> dict[str, Record]:
    return {f"request {request_id} turn {turn}": line for (request_id, turn), line in run.outputs.items()}


def _mismatch(file: str, old: Mapping[str, Record], new: Mapping[str, Record], *, torn: bool) -> Mismatch | None:
    missing = [name for name in new if name not in old]
    if torn and len(missing) == 1:
        new = {name: line for name, line in new.items() if name in old}
    different = {
        name: what for name in {**old, **new} if (what := _first_difference(old.get(name), new.get(name))) is not None
    }
    if not different and list(old) != list(new):
        different = {"order": "the lines are the same, in another order"}
    if not different:
        return None
    name, what = next(iter(different.items()))
    return Mismatch(file=file, num=len(different), total=len({**old, **new}), first=f"{name}: {what}")


def _first_difference(old: Record | None, new: Record | None) -> str | None:
    if old is None or new is None:
        return f"only in the {'second' if old is None else 'first'} run"
    for name in (name for name in {**old, **new} if name not in NOT_COMPARED):
        if old.get(name) != new.get(name):
            return f"{name} was {old.get(name)} and is {new.get(name)}"
    return None


def _new_folder() -> Path:
    now = datetime.now()
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S-%f}-{secrets.token_hex(3)}"


if __name__ == "__main__":
    sys.exit(main())
