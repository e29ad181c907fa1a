"""The length of drafts that a drafter's class decides: in the summary, headings, tables and the report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.report.collect import collect
from experiments.report.views_sweep import speedup_view
from experiments.run_folder import SUMMARY, read_json
from experiments.sweep_table import LENGTH, differing, settings_of, with_lengths
from experiments.table import drafter_text

PAIR = ("drafter=custom", "drafter._target_=experiments.examples.pair_drafter.PairConfig")
TOY = ("target=toy", "workload.limit=2", "sampling.max_new_tokens=12", "sampling.temperature=0")
Command = Callable[..., int]


def test_the_default_of_a_class_stands_in_the_summary_and_in_the_heading(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*TOY, *PAIR, "hydra.run.dir=one") == 0
    assert read_json(tmp_path / "one" / SUMMARY)["drafter"] == {"name": "pair", "num_draft_tokens": 3}
    assert read_json(tmp_path / "one" / "baseline" / SUMMARY)["drafter"]["num_draft_tokens"] == 0
    assert "drafter pair, 3 draft tokens" in capsys.readouterr().out


def test_the_report_draws_runs_whose_class_decides_and_reads_folders_that_do_not_say_it(
    run_here: Command, tmp_path: Path
) -> None:
    assert run_here(*TOY, *PAIR, "hydra.run.dir=runs/one") == 0
    assert run_here(*TOY, *PAIR, "drafter.params.num_draft_tokens=2", "hydra.run.dir=runs/two") == 0
    plain, runs = (collect([tmp_path / "runs"]).finished[place] for place in (slice(2, None), slice(2)))
    assert [run.num_draft_tokens for run in runs] == [2, 3]
    assert [run.label[:26] for run in runs] == ["#1 pair_drafter, 2 drafted", "#2 pair_drafter, 3 drafted"]
    assert "Speed-up against draft length" in speedup_view(runs)
    assert {run.num_draft_tokens for run in plain} == {None}
    for path in (tmp_path / "runs").glob(f"**/{SUMMARY}"):
        summary = read_json(path)
        del summary["drafter"]
        path.write_text(json.dumps(summary))
    older = collect([tmp_path / "runs"])
    assert [run.num_draft_tokens for run in older.finished] == [None] * 4 and older.unfinished == ()


def test_the_table_of_a_sweep_has_the_lengths_where_they_differ() -> None:
    overrides = ["drafter=pair"], ["drafter=lucky", f"{LENGTH}=2"], ["drafter=none"]
    settings = [settings_of(own) for own in overrides]
    summaries = [{"drafter": {"num_draft_tokens": length}} for length in (3, 2, 0)]
    told = with_lengths(settings, summaries)
    assert [own.get(LENGTH) for own in told] == ["3", "2", None] and LENGTH in differing(told)
    assert with_lengths(settings, [summaries[1], summaries[1], {}]) == settings


def test_plain_decoding_is_called_so_whatever_length_it_was_given() -> None:
    assert drafter_text({"name": "none (plain decoding)", "num_draft_tokens": 0}) == "none (plain decoding)"
