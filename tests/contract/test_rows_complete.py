"""No row of the contract is forgotten: each has a test that is named after it, or a reason why it has none."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROWS = set(range(1, 109))


def rows_with_a_test() -> set[int]:
    sources = (path.read_text(encoding="utf-8") for path in FOLDER.glob("test_rows_*.py"))
    return {int(row) for source in sources for row in re.findall(r"^def test_row_(\d+)_", source, re.MULTILINE)}


def rows_without_one() -> dict[int, str]:
    """The reason of each row in the table of DROPPED.md."""
    lines = re.findall(r"^\| (\d+) \| ([^|]+) \|", (FOLDER / "DROPPED.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len({row for row, _ in lines}) == len(lines), "a row is dropped twice"
    return {int(row): reason.strip() for row, reason in lines}


def test_every_row_is_tested_or_dropped_for_a_reason():
    tested, dropped = rows_with_a_test(), rows_without_one()
    assert tested | set(dropped) == ROWS
    assert tested & set(dropped) == set(), "dropped, yet tested"
    assert all(dropped.values())


def test_every_invariant_names_a_test_that_exists():
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, 11))
    for _, cell in lines:
        for path, _, name in re.findall(r"`([\w/]+\.py)(::(\w+))?`", cell):
            source = (FOLDER.parent / path).read_text(encoding="utf-8")
            assert name in source, f"{path}::{name}"
