"""jobs.json: jobs of all shards, in order; a damaged one is as none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.sweep_plan import JOBS, read_plan, write_plan

PLAN_ONE = """
import sys
from pathlib import Path

from experiments.sweep_plan import write_plan

write_plan(Path(sys.argv[1]), {"a": []})
"""


def test_shards_add_to_one_plan(tmp_path: Path) -> None:
    write_plan(tmp_path, {"a": ["drafter=ngram"], "b": []})
    write_plan(tmp_path, {"c": ["x=1", "y=2"], "a": ["drafter=ngram"]})
    planned = read_plan(tmp_path)
    assert [each.name for each in planned] == ["a", "b", "c"]
    assert planned[2].overrides == ("x=1", "y=2")
    assert {each.pid for each in planned} == {os.getpid()}
    assert not any(each.is_given_up for each in planned)


def test_jobs_of_a_process_that_is_gone_are_given_up(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PLAN_ONE, str(tmp_path)], check=True)
    (planned,) = read_plan(tmp_path)
    assert planned.is_given_up


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"name": "a"}]', "null", "{}"])
def test_damaged_plan_is_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / JOBS).write_text(content, encoding="utf-8")
    assert read_plan(tmp_path) == ()


def test_plan_is_plain_json(tmp_path: Path) -> None:
    write_plan(tmp_path, {"a": ["drafter=ngram"]})
    (entry,) = json.loads((tmp_path / JOBS).read_text(encoding="utf-8"))
    assert set(entry) == {"name", "overrides", "pid", "host"}
