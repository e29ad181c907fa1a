"""Tables: every row of many runs, whatever state they are in, and a Parquet file that can be done without."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from shutil import copytree

import duckdb
import pytest

from experiments import compact as compacting
from experiments import query, run
from experiments.compact import compact, step_columns
from experiments.run_folder import HOST, read_json, read_jsonl, write_json
from experiments.tables import Tables
from specdec.errors import ConfigError
from specdec.step_row import SCHEMA_VERSION, StepRow

TOY = ("target=toy", "drafter=nextn", "drafter.num_draft_tokens=2", "+experiment=smoke", "engine.repeats=1")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its baseline."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert run.main([*TOY, f"hydra.run.dir={folder}", "engine.threads=1"]) == 0
    return folder


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the run."""
    copytree(original, tmp_path / "runs" / "one")
    return tmp_path / "runs"


def rows_of(folder: Path, sql: str) -> list[tuple]:
    with Tables([folder]) as tables:
        return tables.rows(sql)


def test_finished_run_has_its_rows_as_parquet_with_the_schema_version(original: Path) -> None:
    rows = read_jsonl(original / "steps.jsonl")
    parquet = original / "steps.parquet"
    with duckdb.connect() as connection:
        read = connection.read_parquet(str(parquet))
        names = read.columns
        packed = read.fetchall()
        meta = connection.sql(f"SELECT decode(key), decode(value) FROM parquet_kv_metadata('{parquet}')").fetchall()
    assert ("schema_version", str(SCHEMA_VERSION)) in meta
    assert names == [spec.name for spec in fields(StepRow)] == list(step_columns())
    assert [dict(zip(names, row, strict=True)) for row in packed] == [{**dict.fromkeys(names), **row} for row in rows]


def test_every_table_has_the_rows_of_every_run(place: Path) -> None:
    one, plain = place / "one", place / "one" / "baseline"
    counts = {name: len(read_jsonl(folder / "steps.jsonl")) for name, folder in ((str(one), one), (str(plain), plain))}
    assert dict(rows_of(place, "SELECT run, count(*) FROM steps GROUP BY 1")) == counts
    assert rows_of(place, "SELECT count(*) FROM outputs") == [(4,)]
    value = read_json(one / "summary.json")["tokens_per_step"]["value"]
    by_drafter = (
        "SELECT value, tokens_per_step.value, status, device FROM summaries JOIN settings USING (run) "
        "JOIN statuses USING (run) JOIN environments USING (run) WHERE key = 'drafter._target_' ORDER BY 1"
    )
    assert rows_of(place, by_drafter) == [
        ("drafters.nextn.NextnConfig", value, "done", "cpu"),
        ("drafters.none.NoneConfig", 1.0, "done", "cpu"),
    ]


@pytest.mark.parametrize("spoil", ["running", "half", "gone"])
def test_rows_are_read_from_lines_where_the_parquet_cannot_be_trusted(place: Path, spoil: str) -> None:
    one = place / "one"
    parquet = one / "steps.parquet"
    if spoil == "running":
        (one / "status.json").write_text('{"status": "running"}', encoding="utf-8")
    elif spoil == "half":
        parquet.write_bytes(parquet.read_bytes()[:-40])
    else:
        parquet.unlink()
    lines = (one / "steps.jsonl").read_bytes()
    (one / "steps.jsonl").write_bytes(lines[:-20])
    count = len(read_jsonl(one / "steps.jsonl"))
    assert count == lines.count(b"\n") - 1
    assert rows_of(place, f"SELECT count(*) FROM steps WHERE run = '{one}'") == [(count,)]


def test_run_whose_process_is_gone_died(place: Path) -> None:
    gone = {"status": "running", "pid": 2**30, "host": HOST}
    write_json(place / "one" / "status.json", gone)
    assert rows_of(place, "SELECT status FROM statuses ORDER BY 1") == [("died",), ("done",)]
    write_json(place / "one" / "status.json", {**gone, "host": "another"})
    assert rows_of(place, "SELECT status FROM statuses ORDER BY 1") == [("done",), ("running",)]


def test_torn_line_loses_that_line_only_when_compacted(place: Path) -> None:
    one = place / "one"
    lines = (one / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (one / "steps.jsonl").write_bytes(b"".join(lines)[:-20])
    assert compact(one) is not None
    assert rows_of(place, f"SELECT count(*) FROM steps WHERE run = '{one}'") == [(len(lines) - 1,)]


def test_rows_of_other_versions_are_read_by_name_and_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(copytree(place / "one", place / "two"))
    rows = read_jsonl(other / "steps.jsonl")
    old = [{**{k: v for k, v in row.items() if k != "depth"}, "schema_version": 0, "colour": "red"} for row in rows]
    (other / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old), encoding="utf-8")
    (other / "steps.parquet").unlink()
    sql = f"SELECT DISTINCT schema_version, depth, accepted IS NULL FROM steps WHERE run = '{other}'"
    assert rows_of(place, sql) == [(0, None, False)]
    assert query.main([str(place), "sql=SELECT 1"]) == 0
    said = capsys.readouterr().err
    assert f"1 runs have rows of schema version 0, and this version writes {SCHEMA_VERSION}" in said


def test_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no run folder below {tmp_path}"):
        Tables([tmp_path])


def test_run_that_has_only_begun_has_empty_tables(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    for name in ("steps.jsonl", "outputs.jsonl"):
        (folder / name).touch()
    (folder / "status.json").write_text('{"status": "ru', encoding="utf-8")
    for name in ("steps", "outputs", "summaries", "statuses", "settings"):
        assert rows_of(tmp_path, f"SELECT count(*) FROM {name}") == [(0,)]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_answer_goes_to_a_new_file_only(place: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"answer.{form}"
    question = [str(place), "sql=SELECT run, sum(emitted) AS tokens FROM steps GROUP BY 1;", f"out={out}"]
    assert query.main(question) == 0
    with duckdb.connect() as connection:
        assert len(connection.sql(f"SELECT tokens FROM '{out}'").fetchall()) == 2
    before = out.read_bytes()
    assert query.main(question) == 2
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name at least one folder"),
        (["nowhere"], "there is no such folder"),
        (["HERE", "sql=SELECT nope FROM steps"], "nope"),
        (["HERE", "sql=SELECT 1/'x' FROM steps"], "Could not convert"),
        (["HERE", "out=a.csv"], "needs a question"),
        (["HERE", "sql=SELECT 1", "out=a.doc"], "one of .csv, .parquet, .json"),
    ],
)
def test_mistake_is_one_line(place: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert query.main([str(place) if word == "HERE" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_example_of_the_help_groups_finished_runs_by_drafter_and_draft_length(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(place / "one", place / "again")
    going_on = copytree(place / "one", place / "going_on")
    write_json(going_on / "status.json", {"status": "running"})
    assert query.main(["--help"]) == 0
    (sql,) = re.findall(r'sql="(SELECT .*?)"', capsys.readouterr().out, flags=re.DOTALL)
    readme = (Path(query.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r'(experiments.query multirun sql="\n.*?")\n', readme, flags=re.DOTALL)
    assert shlex.split(command)[2].removeprefix("sql=").split() == sql.split()
    summary = read_json(place / "one" / "summary.json")
    expected = ("NextnConfig", 2, 2, pytest.approx(summary["tokens_per_step"]["value"]))
    assert rows_of(place, sql) == [expected]
    assert query.main([str(place), f"sql={sql}"]) == 0
    assert "NextnConfig" in capsys.readouterr().out


def test_without_a_question_the_tables_are_described(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert query.main([str(place)]) == 0
    said = capsys.readouterr().out
    assert "steps (" in said and "settings (" in said and "draft_ids" in said


def test_parquet_that_cannot_be_written_is_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "one" / "steps.parquet").unlink()
    refuse: Callable[..., None] = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))  # noqa: E731
    monkeypatch.setattr(compacting.os, "replace", refuse)
    assert compact(place / "one") is None
    assert "No space left on device (the rows are in steps.jsonl)" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in (place / "one").glob("*parquet*")} == set()
