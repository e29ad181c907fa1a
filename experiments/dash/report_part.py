"""ReportPart: the report's page over the runs that are done, as a part of another page; knows no view of it.

It takes the report apart at its outermost tags only, so that a new view there is a new view here.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.dash.roots import Roots
from experiments.report.collect import Found, collect
from experiments.report.page import page
from experiments.run_folder import STATUS, Status, status_of
from specdec.errors import SpecDecError

MAIN = re.compile(r"<main[^>]*>(.*)</main>", re.DOTALL)
NAV = re.compile(r"<nav[^>]*>.*?</nav>", re.DOTALL)
STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.DOTALL)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
Stamp = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Markup, style and script of a report; ``problem`` says in words why there is none."""

    markup: str = ""
    style: str = ""
    script: str = ""
    problem: str = ""


class ReportPart:
    """Makes the report anew when another run is done; holds the last one, which is shown in the meantime."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._lock = threading.Lock()
        self._part = taken_apart(page(Found(finished=(), unfinished=())))
        self._stamp: Stamp | None = None
        self._thread: threading.Thread | None = None

    @property
    def part(self) -> Part:
        """The last one that is whole."""
        with self._lock:
            return self._part

    def look(self, *, wait: bool = False) -> None:
        """Begin a new one if there is something new; ``wait`` until it is there."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._renew, daemon=True)
                self._thread.start()
            thread = self._thread
        if wait:
            thread.join()

    def _renew(self) -> None:
        runs, _ = self._roots.run_paths()
        done = [path for path in runs if status_of(path) is Status.DONE]
        stamp = _stamp(done)
        if stamp == self._stamp:
            return
        part = self._made(done)
        with self._lock:
            self._part, self._stamp = part, stamp

    def _made(self, done: Sequence[Path]) -> Part:
        try:
            found = collect(done)
            allowed = set(done)
            finished = tuple(run for run in found.finished if run.path in allowed)
            return taken_apart(page(replace(found, finished=finished, unfinished=())))
        except (SpecDecError, OSError, ValueError, KeyError) as error:
            # A folder that goes away while it is read; the next look tries again.
            return replace(self._part, problem=f"the figures cannot be made now: {' '.join(str(error).split())}")


def taken_apart(text: str) -> Part:
    """The parts of a whole page."""
    main = MAIN.search(text)
    nav = NAV.search(text)
    return Part(
        markup=(nav.group(0) if nav else "") + (main.group(1) if main else ""),
        style="\n".join(STYLE.findall(text)),
        script="\n".join(SCRIPT.findall(text[main.end() if main else 0 :]) or SCRIPT.findall(text)),
    )


def _stamp(runs: Sequence[Path]) -> Stamp:
    found = []
    for path in runs:
        try:
            found.append((str(path), (path / STATUS).stat().st_mtime_ns))
        except OSError:
            continue
    return tuple(found)
