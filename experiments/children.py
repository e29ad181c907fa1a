"""Children: processes that a launcher started and an interrupt would leave behind; on Linux, where /proc lists them.

An interrupt is sent to the direct children alone, which pass it on: a second one would cut short what the first began.
Those that ignore interrupts are left: helpers of the standard library, which end with this process, and runs that have
begun to record their own interrupt.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

END_S = 12.0
"""How long interrupted jobs may take to write their folders; a little more than a run's own process is given."""
KILL_S = 1.0


@contextmanager
def children_ended() -> Iterator[None]:
    """When its user interrupts the block, interrupt every process that was started in it, then end what is left."""
    before = descendants(os.getpid())
    try:
        yield
    except KeyboardInterrupt:
        end([pid for pid in descendants(os.getpid()) if pid not in before and not _ignores_interrupts(pid)])
        raise


def end(pids: list[int]) -> None:
    """Interrupt the direct children among processes, wait for all up to END_S, kill those that stay."""
    table = _table()
    _signal([pid for pid in pids if pid in table and table[pid][0] == os.getpid()], signal.SIGINT)
    _wait(pids, END_S)
    _signal([pid for pid in pids if is_alive(pid)], signal.SIGKILL)
    _wait(pids, KILL_S)


def _wait(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    parents = {child: parent for child, (parent, _) in _table().items()}
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, other in parents.items() if other == parent]
        found += children
        waiting += children
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    entry = _entry(Path(f"/proc/{pid}/stat"))
    return entry is not None and entry[1] not in ("Z", "X")


def _ignores_interrupts(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        # It has ended.
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def _table() -> dict[int, tuple[int, str]]:
    entries = {int(path.parent.name): _entry(path) for path in Path("/proc").glob("[0-9]*/stat")}
    return {pid: entry for pid, entry in entries.items() if entry is not None}


def _entry(path: Path) -> tuple[int, str] | None:
    """Parent and state of a process; None when it has ended."""
    try:
        state, parent, *_ = path.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return int(parent), state


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
