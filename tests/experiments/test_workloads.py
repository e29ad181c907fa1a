"""Workload files: what is read, what is refused and where, and which rows a limit takes."""

import json
from collections import Counter
from dataclasses import Field, fields
from pathlib import Path

import pytest

from experiments.build import sampling_params
from experiments.schemas import Allowed, SamplingSchema
from experiments.workloads import (
    BUILTIN_PATH,
    SAMPLING_RULES,
    load_workload,
    read_rows,
    take_round_robin,
    workload_of,
)
from specdec.errors import WorkloadError
from specdec.sampling_params import SamplingParams


def write(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_builtin_prompts_cover_six_categories_of_ten_or_more() -> None:
    rows = read_rows(BUILTIN_PATH)
    sizes = Counter(row.category for row in rows)
    assert len(rows) >= 60
    assert set(sizes) == {"python_code", "manual", "copy_edit", "structured", "dictionary", "story"}
    assert min(sizes.values()) >= 10
    assert all(row.prompt and 80 <= len(row.prompt) <= 500 for row in rows)


def test_builtin_limit_takes_categories_in_turn() -> None:
    workload = workload_of({"name": "builtin", "limit": 12})
    assert len(workload.rows) == 12
    assert set(Counter(row.category for row in workload.rows).values()) == {2}


def test_every_field_of_a_row_is_kept(tmp_path: Path) -> None:
    overrides = {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "seed": 11,
        "stop": ["\n\n"],
        "stop_token_ids": [5],
        "min_new_tokens": 2,
        "ignore_eos": True,
    }
    path = write(tmp_path, {"prompt": "a", "id": "x", "category": "c", **overrides}, {"prompt_ids": [1, 2]})
    first, second = read_rows(path)
    assert (first.id, first.category, first.prompt, first.overrides) == ("x", "c", "a", overrides)
    assert (second.id, second.prompt_ids, second.prompt) == ("line-2", (1, 2), None)


def test_row_may_set_what_a_request_may() -> None:
    assert {spec.name for spec in fields(SamplingParams)} == set(SAMPLING_RULES)


@pytest.mark.parametrize("spec", fields(SamplingSchema), ids=lambda spec: spec.name)
def test_limits_of_the_command_line_are_those_of_a_row_and_of_a_request(tmp_path: Path, spec: Field) -> None:
    allowed = spec.metadata.get("allowed", Allowed())
    known = [limit for limit in (allowed.low, allowed.high) if limit is not None]
    for limit in known:
        value = [limit] if spec.name == "stop_token_ids" else limit
        (row,) = read_rows(write(tmp_path, {"prompt": "a", spec.name: value}))
        assert sampling_params({"min_new_tokens": 0}, row) is not None
    for limit, step in ((allowed.low, -1), (allowed.high, 1)):
        if limit is not None:
            with pytest.raises(WorkloadError, match=f"{spec.name} must be"):
                read_rows(write(tmp_path, {"prompt": "a", spec.name: limit + step}))


def test_spec_bench_row_has_turns_and_a_question_id(tmp_path: Path) -> None:
    line = {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["r"]}
    (row,) = read_rows(write(tmp_path, line))
    assert (row.id, row.category, row.turns) == ("81", "writing", ("a", "b"))


def test_empty_lines_are_passed_over_but_counted(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "", {"prompt": "a"}, "  ", {"prompt": "b"}))
    assert [row.id for row in rows] == ["line-2", "line-4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ({}, "exactly one of prompt, prompt_ids, turns"),
        ({"prompt": "a", "turns": ["b"]}, "exactly one of"),
        ({"prompt": 3}, "prompt must be text"),
        ({"prompt_ids": [1, -2]}, "prompt_ids must be a list of token ids"),
        ({"prompt_ids": [True]}, "prompt_ids must be"),
        ({"turns": []}, "turns must be a list of at least one text"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens must be an integer, at least 1, got 0"),
        ({"prompt": "a", "max_new_token": 5}, "nearest: max_new_tokens"),
        ({"prompt": "a\ud800b"}, "half of a surrogate pair"),
        ({"prompt": "a", "id": "\ud800"}, "half of a surrogate pair"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ({"prompt": "a", "temperature": 10**400}, "temperature must be a number"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature must be a number"),
        ({"prompt": "a", "top_k": -2}, "top_k must be an integer, at least -1, got -2"),
        ({"prompt": "a", "top_k": 1.5}, "top_k must be an integer"),
        ({"prompt": "a", "logprobs": 1}, "logprobs must be true or false"),
        ({"prompt": "a", "stop": "x"}, "stop must be a list"),
        ({"prompt": "a", "stop": [""]}, "stop must be a list of texts, none empty"),
        ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids must be a list"),
        ({"prompt": "a", "category": 3}, "category must be text"),
        ({"prompt": "a", "id": 1, "question_id": 2}, "differ"),
        ('{"prompt": "a", "seed": 1, "prompt": "b"}', "'prompt' is given twice"),
        ('{"prompt": "a", "note": {"x": 1, "x": 1}}', "'x' is given twice"),
    ],
)
def test_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: object, said: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(WorkloadError) as refusal:
        read_rows(path)
    assert str(refusal.value).startswith(f"{path}:2: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_byte_order_mark_before_the_first_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [row.prompt for row in read_rows(path)] == ["a", "b"]


def test_duplicate_id_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"})
    with pytest.raises(WorkloadError, match=r":2: id 'x' is already that of line 1"):
        read_rows(path)


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="nowhere.jsonl"):
        read_rows(tmp_path / "nowhere.jsonl")
    with pytest.raises(WorkloadError, match="there is no prompt"):
        load_workload("file", write(tmp_path, ""))


def test_limit_is_total_rows_and_keeps_order_within_a_category(tmp_path: Path) -> None:
    lines = [{"prompt": str(i), "id": f"{c}{i}", "category": c} for c in "abc" for i in range(3)]
    rows = read_rows(write(tmp_path, *lines))
    assert [row.id for row in take_round_robin(rows, 5)] == ["a0", "b0", "c0", "a1", "b1"]
    assert [row.id for row in take_round_robin(rows, None)] == [line["id"] for line in lines]


def test_hash_follows_content_not_place(tmp_path: Path) -> None:
    one = load_workload("file", write(tmp_path, {"prompt": "a"}, {"prompt": "b"}))
    (tmp_path / "other").mkdir()
    same = load_workload("file", write(tmp_path / "other", {"prompt": "a"}, {"prompt": "b"}))
    different = load_workload("file", write(tmp_path / "other", {"prompt": "a"}, {"prompt": "b", "top_k": 1}))
    assert one.hash == same.hash != different.hash
