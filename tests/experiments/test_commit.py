"""Which commit a checkout is at, which of its changes matter, and which commit has some code."""

import subprocess
from pathlib import Path

import pytest

from experiments.commit import ROOT, commit_of, commit_with
from experiments.fingerprint import CODE_FOLDERS, code_hash, hash_of_sources


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(root), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one of two commits of code and one of a document; the first file of code changed in the second."""
    for folder in CODE_FOLDERS:
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(f"# {folder}\n", encoding="utf-8")
        (tmp_path / folder / "inner" / "b.py").write_text("", encoding="utf-8")
    (tmp_path / "experiments" / "results").mkdir()
    (tmp_path / "experiments" / "results" / "old.json").write_text("{}", encoding="utf-8")
    (tmp_path / "README.md").write_text("old", encoding="utf-8")
    git(tmp_path, "init", "-q")
    for number, changed in enumerate(("README.md", "specdec/a.py", "README.md")):
        (tmp_path / changed).write_text(f"# {number}\n", encoding="utf-8")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", str(number))
    return tmp_path


def sources(root: Path) -> list[tuple[str, bytes]]:
    return [(path.relative_to(root).as_posix(), path.read_bytes()) for path in root.rglob("*.py")]


def test_only_tracked_files_that_matter_make_a_checkout_dirty(checkout: Path) -> None:
    clean = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert commit_of(checkout) == clean
    for name in ("README.md", "experiments/results/old.json", "specdec/untracked.py"):
        (checkout / name).write_text("new", encoding="utf-8")
        assert commit_of(checkout) == clean, name
    (checkout / "specdec" / "a.py").chmod(0o755)
    assert commit_of(checkout) == clean
    (checkout / "drafters" / "a.py").write_text("new", encoding="utf-8")
    assert commit_of(checkout) == f"{clean}-dirty"
    git(checkout, "checkout", "drafters/a.py")
    (checkout / "backends" / "a.py").unlink()
    assert commit_of(checkout) == f"{clean}-dirty"


def test_a_copy_of_the_files_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert commit_of(tmp_path) is None
    assert commit_with("0", tmp_path) is None


def test_code_is_found_in_the_commit_that_brought_it(checkout: Path) -> None:
    assert commit_with(hash_of_sources(sources(checkout)), checkout) == git(
        checkout, "rev-parse", "--short=12", "HEAD~1"
    )
    before = [(path, b"# specdec\n" if path == "specdec/a.py" else content) for path, content in sources(checkout)]
    assert commit_with(hash_of_sources(before), checkout) == git(checkout, "rev-parse", "--short=12", "HEAD~2")
    assert commit_with("0", checkout) is None


def test_the_hash_of_this_code_does_not_depend_on_the_order_of_its_files() -> None:
    found = [pair for folder in CODE_FOLDERS for pair in sources(ROOT) if pair[0].startswith(f"{folder}/")]
    assert hash_of_sources(reversed(found)) == hash_of_sources(found) == code_hash()
