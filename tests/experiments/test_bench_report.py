"""A sweep of drawn rows is made and reported within its limits."""

from pathlib import Path

from experiments.bench_report import make_runs, measure
from experiments.report.collect import collect
from experiments.report.rows import read_rows


def test_drawn_runs_are_reported_in_bounded_time_and_memory(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", num_runs=7, num_rows=1000)
    found = collect([tmp_path / "runs"])
    assert (len(found.finished), found.unfinished) == (7, ())
    assert {run.num_draft_tokens for run in found.finished} == {1, 2, 3, 4, 6, 8}
    rows = read_rows(found.finished[0].path)
    assert rows.num_rounds == 1000 and sum(measure.n for measure in rows.by_category.values()) == 1000
    cost = measure(tmp_path / "runs", tmp_path / "report.html")
    assert cost.memory_mib < 1024
    assert (tmp_path / "report.html").stat().st_size > 0
