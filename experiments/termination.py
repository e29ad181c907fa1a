"""Termination: SIGTERM, with which job systems end a program, taken as an interrupt; knows nothing of runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit code of a program that SIGTERM ended, as shells count."""


class Terminated(KeyboardInterrupt):
    """This process was sent SIGTERM."""


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Raise Terminated in the block at a SIGTERM; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate_once(*_: object) -> None:
    """A handler: a second signal, which ``timeout`` sends at once, must not interrupt the record of the first."""
    signal.signal(signal.SIGTERM, pass_over)
    raise Terminated


def pass_over(*_: object) -> None:
    """A handler that does nothing; of a signal that has come and is ignored before it is heard, Python complains."""


@contextmanager
def born_deaf() -> Iterator[None]:
    """Processes that are started in the block do not hear SIGTERM before they say so with ``hear``.

    One that reaches this process in the block is heard after it.
    """
    # Started here, since its start would end the block's deafness.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear() -> None:
    """End the deafness that this process was born with."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
