"""Folders in every state: listed with their reason, never a crash; and mistakes of a command line in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.report.command import main
from experiments.run_folder import HOST

Page = Any  # conftest.Page, which import mode importlib does not let a test import
ReadPage = Callable[[Path], Page]


@pytest.fixture
def copies(one: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the finished baseline by name, below ``runs``."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(one / "baseline", tmp_path / "runs" / name))

    return copy


def spoil_status(folder: Path, **content: object) -> None:
    (folder / "status.json").write_text(json.dumps(content), encoding="utf-8")


def change(path: Path, **changed: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | changed
    path.write_text(json.dumps(content), encoding="utf-8")


def test_every_state_is_listed_with_its_reason(
    copies: Callable[[str], Path], read_page: ReadPage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies("done")
    spoil_status(copies("running"), status="running")
    spoil_status(copies("died"), status="running", pid=2**30, host=HOST)
    spoil_status(copies("failed"), status="failed", traceback="Traceback\nValueError: <b>no</b> such page\n")
    (copies("no_status") / "status.json").unlink()
    torn = copies("torn_summary") / "summary.json"
    torn.write_text(torn.read_text(encoding="utf-8")[:200], encoding="utf-8")
    (copies("no_config") / "config.resolved.yaml").unlink()
    (copies("bad_config") / "config.resolved.yaml").write_text("a: [1,\nb: {", encoding="utf-8")
    change(copies("other_version") / "summary.json", schema_version=99)
    older = copies("older") / "summary.json"
    change(older, schema_version=0, tokens_per_step={"value": 1.5, "low": 1.0, "high": 2.0, "n": 4})
    content = json.loads(older.read_text(encoding="utf-8"))
    older.write_text(json.dumps({k: v for k, v in content.items() if k != "loop_token_share"}), encoding="utf-8")
    change(copies("incomplete") / "summary.json", survival=None)
    (copies("not_text") / "summary.json").write_bytes(b"\xff\xfe\x00")
    out = tmp_path / "report.html"
    assert main([str(tmp_path / "runs"), f"out={out}"]) == 0
    listed = {row[0].rpartition("/")[2]: row[1:] for row in rows_of(read_page(out))}
    assert {name: state for name, (state, _) in listed.items()} == {
        "running": "not finished",
        "died": "died",
        "failed": "failed",
        "no_status": "damaged",
        "torn_summary": "damaged",
        "no_config": "damaged",
        "bad_config": "damaged",
        "other_version": "other version",
        "incomplete": "damaged",
        "not_text": "damaged",
    }
    assert listed["failed"][1] == "ValueError: <b>no</b> such page"
    assert "whole rows of steps" in listed["running"][1]
    assert listed["died"][1].startswith("status.json says running, its process is gone; ")
    assert "99" in listed["other_version"][1]
    remarks = [cell.text for cell in read_page(out).all("td", within="runs") if "schema version 0" in cell.text]
    assert len(remarks) == 1 and "it has no loop_token_share" in remarks[0]
    printed = capsys.readouterr().out
    assert "failed: " in printed and "not finished: " in printed


def rows_of(page: Page) -> list[list[str]]:
    cells = [cell.text for cell in page.all("td", within="unfinished")]
    return [cells[start : start + 3] for start in range(0, len(cells), 3)]


def test_only_unfinished_runs_make_a_page_too(
    copies: Callable[[str], Path], read_page: ReadPage, tmp_path: Path
) -> None:
    spoil_status(copies("running"), status="running")
    out = tmp_path / "report.html"
    assert main([str(tmp_path / "runs"), f"out={out}"]) == 0
    assert read_page(out).parts() == ["unfinished"]


def test_torn_rows_lose_the_last_line_and_broken_rows_their_views(
    one: Path, read_page: ReadPage, tmp_path: Path
) -> None:
    torn, broken = (Path(shutil.copytree(one, tmp_path / "runs" / name)) for name in ("a_torn", "b_broken"))
    steps = torn / "steps.jsonl"
    steps.write_text(steps.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    (broken / "outputs.jsonl").write_text("{nonsense}\n", encoding="utf-8")
    out = tmp_path / "report.html"
    assert main([str(tmp_path / "runs"), f"out={out}"]) == 0
    page = read_page(out)
    assert "#2 nextn, 3 drafted: its rows cannot be read" in page.all("p", kind="note")[0].text
    assert len(page.all("pre", within="tokens")) == 2
    assert len(page.all("svg", within="acceptance")) == 2


def test_an_empty_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), f"out={tmp_path / 'report.html'}"]) == 2
    assert capsys.readouterr().err == f"error: there is no run folder below {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name at least one folder"),
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "ouf=x.html"], "the keys are out=, pair="),
        ([".", "out="], "out= is empty"),
        ([".", "pair=1"], "pair must be the numbers of two runs"),
        ([".", "export=png"], "export must be svg or pdf"),
        ([".", "out_dir=charts"], "needs export=svg"),
        ([".", "out=missing/report.html"], "its folder does not exist"),
        ([".", "out=."], "is a folder"),
        ([".", "out=thesis.html"], "is no report and would be lost"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.html").write_text("<p>two years of work</p>", encoding="utf-8")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.html"]


def test_an_earlier_report_is_replaced_and_folders_count_once(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    for _ in range(2):
        assert main([str(one), str(one / "baseline"), f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"#2: {one / 'baseline'}") == 2 and "#3" not in printed
    assert "tokens_per_step: emitted tokens / steps" in printed
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
