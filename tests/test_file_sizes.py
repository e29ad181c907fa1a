"""No Python file of the project is longer than a reader can hold."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("specdec", "backends", "drafters", "experiments", "conf", "tests")
MAX_LINES = 400


def test_file_sizes_stay_within_the_limit() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sizes, "the project's folders were not found"
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}
