"""The evidence command: what is compared, what is kept when it stops, and what its tables say."""

import json
from dataclasses import replace

import pytest

from experiments.evidence import collect, measure, plan
from experiments.evidence.cells import Cell, Measured
from experiments.evidence.command import main, wanted
from experiments.evidence.figures import Measurement, figures_of, peer_table, table
from experiments.records import step_record
from specdec.errors import ConfigError
from specdec.step_row import StepRow


def measured(tokens, name="r", *, source="builtin", accepted=2, seconds=1.0):
    row = StepRow(
        request_id=name, round=0, step=0, seq_len=5, proposed=3, depth=3, verified=3, accepted=accepted,
        emitted=accepted + 1, bonus=0, draft_ids=(1, 2, 3), output_ids=tuple(tokens),
    )  # fmt: skip
    return Measured(
        source=source,
        category="story",
        output_ids=tuple(tokens),
        passes=2,
        cpu_s=2 * seconds,
        wall_s=3 * seconds,
        decode_cpu_s=seconds,
        decode_wall_s=seconds,
        num_decoded=len(tokens),
        steps=(step_record(row),),
    )


def block(tmp_path, target="smollm2", temperature=0):
    ways = plan.ways_of(target, temperature, {})
    cells = [Cell(path=tmp_path / f"{way.key}.json", settings=way.settings) for way in ways]
    return [Measurement(way=way, cell=cell, plain=cells[0]) for way, cell in zip(ways, cells, strict=True)]


@pytest.mark.parametrize("target", plan.TARGETS)
def test_each_target_is_measured_in_at_least_six_ways_plain_first(target):
    for temperature in plan.TEMPERATURES:
        ways = plan.ways_of(target, temperature, {})
        assert ways[0].name == plan.PLAIN
        assert len({way.key for way in ways}) == len(ways)
        assert len([way for way in ways if way.drafter is not None]) >= 6
        assert all(way.verifier.lossless for way in ways)


def test_missing_file_of_prompts_names_the_key_of_this_command(tmp_path, capsys):
    assert main(["prompts=question.jsonl", f"out={tmp_path}", "targets=embedded"]) == 2
    error = capsys.readouterr().err
    assert "question.jsonl: cannot read the prompts" in error and "; set prompts" in error and "workload" not in error


def test_help_says_where_the_questions_come_from(capsys):
    assert main(["--help"]) == 0
    assert "data/spec_bench/question.jsonl of its repository" in capsys.readouterr().out


def test_prompts_of_both_sources_are_mixed_and_have_one_turn(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": i, "category": "abc"[i % 3], "turns": [f"one {i}", "two"]} for i in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = plan.prompts_of(2, path, 4)
    assert [prompt.source for prompt in chosen].count("file") == 4
    assert {prompt.source for prompt in chosen[:2]} == {"builtin", "file"}
    assert all(prompt.row.turns == (f"one {prompt.row.id[5:]}",) for prompt in chosen if prompt.source == "file")
    assert sum(map(len, plan.waves(chosen))) == 6


def test_a_cell_is_read_back_and_begun_anew_under_other_settings(tmp_path):
    path = tmp_path / "cell.json"
    cell = Cell.open(path, {"a": 1})
    cell.add("x", measured([1, 2, 3]))
    again = Cell.open(path, {"a": 1})
    assert again.requests == {"x": replace(measured([1, 2, 3]), steps=again.requests["x"].steps)}
    assert again.requests["x"].rows == measured([1, 2, 3]).rows
    assert Cell.open(path, {"a": 2}).requests == {}
    path.write_text('{"torn')
    assert Cell.open(path, {"a": 1}).requests == {}


def test_figures_and_tables(tmp_path):
    cells = block(tmp_path)
    plain, peer, lookup = cells[0], cells[1], next(each for each in cells if each.way.name == plan.LOOKUP)
    for name in ("a", "b"):
        plain.cell.requests[name] = measured([1, 2, 3], name, accepted=0, seconds=4.0)
        peer.cell.requests[name] = replace(measured([1, 2, 3], name), steps=())
        lookup.cell.requests[name] = measured([1, 2, 3] if name == "a" else [1, 2, 9], name)
    found = figures_of(lookup)
    assert found["tokens_per_step"]["value"] == 3.0
    assert found["speedup_cpu"]["value"] == pytest.approx(4.0)
    assert found["exact"] == "1/2"
    assert found["requests"] == 2
    assert figures_of(lookup, "file") == {}
    assert figures_of(lookup.only({"a"}))["exact"] == "1/1"
    assert "| smollm2 | ngram | 3.00 [3.00, 3.00] | 1.00 1.00 0.00 | 4.00 [4.00, 4.00] | - | - | 1/2 |" in table(cells)
    assert "| built-in prompts | 1.50 | 1.50 | 1.50 | 1.50 | 2/2 |" in peer_table(cells)


@pytest.mark.parametrize("word", ["limit=0", "limt=3", "targets=other", "save=maybe", "limit"])
def test_a_mistake_is_one_line(word, capsys):
    with pytest.raises(ConfigError):
        wanted([word])
    assert main([word]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_keeps_what_it_measured_and_goes_on(tmp_path, monkeypatch, capsys):
    few = ("none", "ngram", "oracle")
    every = plan.ways_of
    monkeypatch.setattr(
        collect, "ways_of", lambda *given: tuple(way for way in every(*given) if way.name in few)
    )  # fmt: skip
    for module in (collect, measure):
        monkeypatch.setattr(module, "NEW_TOKENS", {"embedded": 8})
    command = ["builtin=1", "targets=embedded", f"out={tmp_path}"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "| embedded | oracle (upper bound) | 7.00" in first.replace("nan", "-")
    assert "1/1, 1/1" in first
    monkeypatch.setattr(measure.Bench, "measure", None)
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_heads_belong_to_a_target():
    assert wanted(["embedded.eagle3=a", "smollm2.medusa=b"]).heads == {
        "embedded": {"eagle3": "a", "medusa": "embedded-medusa"},
        "smollm2": {"medusa": "b"},
    }
    assert wanted(["targets=embedded", "medusa=a"]).heads == {"embedded": {"eagle3": "embedded-eagle3", "medusa": "a"}}
    for words in (["eagle3=a"], ["targets=embedded", "smollm2.eagle3=a"]):
        with pytest.raises(ConfigError, match="eagle3"):
            wanted(words)
    names = [way.name for way in plan.ways_of("embedded", 1, {"eagle3": "a", "medusa": "b"})]
    assert {"eagle3", "medusa", "nextn, rejection"} < set(names)
    notes = plan.notes_on({"embedded": {"eagle3": "a"}}, {"smollm2-t0-medusa"})
    assert [note.partition(":")[0] for note in notes][-2:] == ["embedded, medusa", "smollm2, eagle3"]


def test_some_drafters_are_added_to_figures_that_are_there():
    same = {"prompt_set_hash": "p", "new_tokens": {}, "dtype": "float32", "threads": 1}
    first = {**same, "command": "all", "git_commit": "a", "code_hash": "b", "processor": "c", "notes": ["n"]}
    old = {**first, "cells": {"embedded-t0-none": {"all": 1}, "embedded-t0-ngram": {"all": 2}}}
    later = {**first, "command": "only=eagle3", "git_commit": "z", "notes": []}
    new = {**later, "cells": {"embedded-t0-none": {"all": 7}, "embedded-t0-eagle3": {"all": 3}}}
    both = collect.added_to(old, new)
    assert {key: cell["all"] for key, cell in both["cells"].items()} == {
        "embedded-t0-none": 1,
        "embedded-t0-ngram": 2,
        "embedded-t0-eagle3": 3,
    }
    assert both["cells"]["embedded-t0-eagle3"]["origin"]["git_commit"] == "z"
    assert (both["git_commit"], both["notes"]) == ("a", [])
    with pytest.raises(ConfigError, match="prompt_set_hash"):
        collect.added_to(old, {**new, "prompt_set_hash": "q"})
