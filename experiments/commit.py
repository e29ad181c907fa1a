"""The commit that code lies at: of a checkout, and of results that were measured in a copy without one."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from experiments.fingerprint import CODE_FOLDERS, hash_of_sources

ROOT = Path(__file__).parents[1]
DIGITS = 12
DIRTY = "-dirty"
# What decides what a run does; documents, tests and results of other measurements do not.
WHAT_MATTERS = (*CODE_FOLDERS, "conf", "pyproject.toml", ":(exclude)experiments/results")
SEARCHED_COMMITS = 300
GIT_S = 30


def commit_of(root: Path = ROOT) -> str | None:
    """Commit of the checkout ``root``; None where it is none, as a copy of the files alone.

    ``DIRTY`` stands behind it when tracked files that matter to a run differ from it; files that git does not know
    do not count.
    """
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", f"--short={DIGITS}", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *WHAT_MATTERS)
    if head is None or changed is None:
        return None
    return head.decode().strip() + (DIRTY if changed.strip() else "")


def commit_with(code: str, root: Path = ROOT) -> str | None:
    """The newest commit, of the last ones that changed code, whose sources have the hash ``code``; None without one."""
    sources = [f"{folder}/*.py" for folder in CODE_FOLDERS]
    log = _git(root, "log", "-n", str(SEARCHED_COMMITS), f"--abbrev={DIGITS}", "--format=%h", "--", *sources)
    blobs: dict[str, bytes] = {}
    for commit in (log or b"").decode().split():
        if hash_of_sources(_sources(root, commit, blobs)) == code:
            return commit
    return None


def _sources(root: Path, commit: str, blobs: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Path and content of every source file of a commit; contents are kept in ``blobs`` by their id."""
    listed = (_git(root, "ls-tree", "-r", "-z", commit, "--", *CODE_FOLDERS) or b"").decode().split("\0")
    entries = (entry.partition("\t") for entry in listed)
    ids = {path: kind.split()[2] for kind, _, path in entries if path.endswith(".py")}
    _read_blobs(root, sorted(set(ids.values()) - blobs.keys()), blobs)
    return [(path, blobs[blob]) for path, blob in ids.items()]


def _read_blobs(root: Path, ids: Iterable[str], blobs: dict[str, bytes]) -> None:
    left = _git(root, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in ids).encode()) or b""
    while left:
        head, _, rest = left.partition(b"\n")
        blob, _, size = head.decode().split()
        blobs[blob], left = rest[: int(size)], rest[int(size) + 1 :]


def _git(root: Path, *words: str, given: bytes = b"") -> bytes | None:
    """What git says about ``root``; None when it cannot. Writes nothing there; modes of copied files do not count."""
    command = ["git", "--no-optional-locks", "-c", "core.fileMode=false", "-C", str(root), *words]
    try:
        return subprocess.run(command, input=given, capture_output=True, check=True, timeout=GIT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return None
