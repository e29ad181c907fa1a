"""Pairing: two finished runs of the same prompts, request by request; knows no metric."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.finished_run import FinishedRun, Key, Record
from experiments.run_folder import OUTPUTS
from specdec.errors import SpecDecError

ABSENT = "-"
# Two runs of one code hash are comparable whatever commit they were started from.
NOT_COMPARED = ("git_commit",)
# What decides which tokens a prompt is.
HASHES = ("prompt_set_hash", "checkpoint_hash")


class UnpairedError(SpecDecError, ValueError):
    """Two runs are not of the same prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two runs of the same prompts; ``keys`` are the requests that both have, in the order of ``old``."""

    old: FinishedRun
    new: FinishedRun
    keys: tuple[Key, ...]
    notes: tuple[str, ...]

    def first_difference(self, key: Key) -> int | None:
        """Position of the first output token in which the two differ, from 0; None when all are the same."""
        return first_difference(self.old.outputs[key]["output_ids"], self.new.outputs[key]["output_ids"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A setting in which two runs differ."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key} is {self.old} in the first and {self.new} in the second"


def pair(old: FinishedRun, new: FinishedRun) -> Pair:
    """Pair two runs; raises UnpairedError, naming what differs, unless they are of the same prompts.

    A later turn continues the answer before it. Where two answers differ so do the prompts after them, and such turns
    are still paired; a later turn that one run has not (its context was full) is left out.
    """
    notes = [*old.notes, *new.notes]
    notes += _check_requests(old, new)
    keys = tuple(key for key in old.outputs if key in new.outputs)
    if not keys:
        raise _unpaired(old, new, "no request is in both")
    different = [key for key in keys if old.outputs[key]["prompt_ids"] != new.outputs[key]["prompt_ids"]]
    for request_id, turn in different:
        if not _answers_differ(old, new, request_id, turn):
            raise _unpaired(old, new, f"the prompts of request {request_id!r} turn {turn} differ")
    if different:
        notes.append(f"{len(different)} later turns continue different answers")
    if not different and old.environment["prompt_set_hash"] != new.environment["prompt_set_hash"]:
        notes.append("the prompts are the same, and the prompt files differ in settings or categories of their rows")
    return Pair(old=old, new=new, keys=keys, notes=tuple(notes))


def first_difference(old: Sequence[int], new: Sequence[int]) -> int | None:
    """Position of the first token in which two outputs differ, the end of the shorter one included."""
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return None if at == len(old) == len(new) else at


def differing(old: Record, new: Record) -> list[Entry]:
    """Entries of two nested mappings that differ, in order."""
    old_flat, new_flat = dict(_flat(old)), dict(_flat(new))
    return [
        Entry(key=key, old=old_flat.get(key, ABSENT), new=new_flat.get(key, ABSENT))
        for key in {**old_flat, **new_flat}
        if key not in NOT_COMPARED and old_flat.get(key, ABSENT) != new_flat.get(key, ABSENT)
    ]


def _flat(node: Record, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_requests(old: FinishedRun, new: FinishedRun) -> list[str]:
    """Notes about requests that one run has and the other has not; raises UnpairedError unless they are explained."""
    notes = []
    for one, other in ((old, new), (new, old)):
        only = [key for key in one.outputs if key not in other.outputs]
        first_turns = [key for key in only if key[1] == 0]
        if len(first_turns) > (OUTPUTS in other.torn):
            more = f" and {len(first_turns) - 1} more are" if len(first_turns) > 1 else " is"
            raise _unpaired(old, new, f"request {first_turns[0][0]!r}{more} only in {one.folder}")
        if only:
            notes.append(f"{len(only)} requests are only in {one.folder} and left out, the first is {only[0][0]!r}")
    return notes


def _answers_differ(old: FinishedRun, new: FinishedRun, request_id: str, turn: int) -> bool:
    """Whether an earlier answer of this conversation differs, or is not there."""
    nothing: Record = {"output_ids": ABSENT}
    earlier = [(request_id, before) for before in range(turn)]
    return any(
        old.outputs.get(key, nothing)["output_ids"] != new.outputs.get(key, nothing)["output_ids"] for key in earlier
    )


def _unpaired(old: FinishedRun, new: FinishedRun, reason: str) -> UnpairedError:
    hashes = [{name: run.environment[name] for name in HASHES} for run in (old, new)]
    entries = differing({"workload": old.config["workload"]}, {"workload": new.config["workload"]})
    entries += differing(*hashes)
    why = "".join(f"; {entry}" for entry in entries)
    return UnpairedError(f"{old.folder} and {new.folder} are not runs of the same prompts: {reason}{why}")
