"""Run folders: status, lock, atomic files, and what a fresh start removes."""

import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from experiments.run_folder import (
    FolderInUseError,
    FolderLock,
    RunFolder,
    Status,
    failure_of,
    is_abandoned,
    read_jsonl,
    status_of,
    write_json,
)


def test_status_goes_from_running_to_done(tmp_path: Path) -> None:
    assert status_of(tmp_path) is Status.ABSENT
    with RunFolder(tmp_path):
        assert status_of(tmp_path) is Status.RUNNING
    assert status_of(tmp_path) is Status.DONE


def test_failure_is_recorded_with_its_traceback_and_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path):
        raise ZeroDivisionError("by nothing")
    assert status_of(tmp_path) is Status.FAILED
    assert failure_of(tmp_path) == "ZeroDivisionError: by nothing"


def test_interrupt_is_a_failure_with_a_reason_and_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path):
        raise KeyboardInterrupt
    assert status_of(tmp_path) is Status.FAILED
    assert failure_of(tmp_path) == "interrupted"
    assert "raceback" not in (tmp_path / "status.json").read_text(encoding="utf-8")


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """Writing beyond ``num_bytes`` of any file fails with an OSError, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failure_is_recorded_in_place_when_nothing_larger_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), files_end_at(300), RunFolder(tmp_path):
        raise ZeroDivisionError("by " + "nothing " * 100)
    assert status_of(tmp_path) is Status.FAILED
    assert failure_of(tmp_path).startswith("ZeroDivisionError: by nothing")
    assert {entry.name for entry in tmp_path.iterdir()} == {"status.json", "steps.jsonl", "outputs.jsonl"}


def test_run_that_cannot_be_recorded_as_done_is_failed(tmp_path: Path) -> None:
    limit = ExitStack()
    with limit, pytest.raises(OSError, match="too large"), RunFolder(tmp_path):
        # Room for the few words of the overwritten file, not for a record with its end (about 130 bytes).
        limit.enter_context(files_end_at(110))
    assert status_of(tmp_path) is Status.FAILED


def test_failure_that_cannot_be_recorded_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = ExitStack()
    with limit, pytest.raises(ZeroDivisionError), RunFolder(tmp_path):
        limit.enter_context(files_end_at(0))
        raise ZeroDivisionError("by nothing")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(tmp_path / "status.json") in said and "may say running" in said


def test_fresh_start_removes_what_an_earlier_run_left(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as out:
        out.append_steps([{"a": 1}])
        out.append_outputs([{"b": 2}])
        out.write_summary({"c": 3})
    with RunFolder(tmp_path):
        assert read_jsonl(tmp_path / "steps.jsonl") == []
        assert read_jsonl(tmp_path / "outputs.jsonl") == []
        assert not (tmp_path / "summary.json").exists()


def test_rows_of_an_attempt_that_did_not_finish_are_kept(tmp_path: Path) -> None:
    for number in range(2):
        with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path) as out:
            out.append_steps([{"attempt": number}])
            if number:
                out.append_outputs([{"attempt": number}])
            raise KeyboardInterrupt
    with RunFolder(tmp_path) as out:
        out.append_steps([{"attempt": 2}])
    kept = {path.name: read_jsonl(path) for path in tmp_path.glob("*.partial-*")}
    assert kept == {
        "steps.partial-1.jsonl": [{"attempt": 0}],
        "steps.partial-2.jsonl": [{"attempt": 1}],
        "outputs.partial-2.jsonl": [{"attempt": 1}],
    }
    assert read_jsonl(tmp_path / "steps.jsonl") == [{"attempt": 2}]


def test_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a', encoding="utf-8")
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]


def test_line_separators_inside_text_do_not_split_a_row(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as out:
        out.append_outputs([{"text": "one\u2028two\x85three\n"}])
    assert read_jsonl(tmp_path / "outputs.jsonl") == [{"text": "one\u2028two\x85three\n"}]


def test_second_writer_is_refused_while_the_first_holds_the_folder(tmp_path: Path) -> None:
    with FolderLock(tmp_path, wait=False):
        with pytest.raises(FolderInUseError, match=str(tmp_path)), FolderLock(tmp_path, wait=False):
            pass
    with FolderLock(tmp_path, wait=False):
        pass


def test_json_is_replaced_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_run_whose_process_is_gone_is_abandoned(tmp_path: Path) -> None:
    with RunFolder(tmp_path):
        assert not is_abandoned(tmp_path)
        content = json.loads((tmp_path / "status.json").read_text(encoding="utf-8"))
        process = subprocess.Popen(["true"])
        process.wait()
        write_json(tmp_path / "status.json", {**content, "pid": process.pid})
        assert is_abandoned(tmp_path)
        write_json(tmp_path / "status.json", {**content, "pid": process.pid, "host": "another"})
        assert not is_abandoned(tmp_path)  # nobody can know
        write_json(tmp_path / "status.json", {"status": "running"})
        assert not is_abandoned(tmp_path)
    assert not is_abandoned(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"status": "odd"}', "{}"])
def test_unreadable_status_counts_as_absent(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content, encoding="utf-8")
    assert status_of(tmp_path) is Status.ABSENT
