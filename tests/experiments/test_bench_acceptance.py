"""Acceptance against a kept run: what is kept is enough, and a run agrees with itself."""

from pathlib import Path

import pytest

from experiments.bench_acceptance import (
    COSTS,
    EXACT,
    METRICS,
    STORAGES,
    FailedRunError,
    compare,
    decode,
    differences,
    estimates,
    merged,
    read_reference,
    save_reference,
)
from experiments.finished_run import FinishedRun

TOY = ("target=toy", "workload.limit=4", "sampling.max_new_tokens=24")


@pytest.fixture(scope="module")
def first() -> FinishedRun:
    return decode(EXACT, "cpu", 0, TOY)


def test_a_kept_run_gives_the_same_figures(first: FinishedRun, tmp_path: Path) -> None:
    save_reference(first, tmp_path / "kept.json")
    kept = read_reference(tmp_path / "kept.json")
    assert kept is not None and estimates(kept) == estimates(first)
    assert set(estimates(kept)) == set(METRICS)
    assert all(
        each.change.value == each.change.low == each.change.high == 0 for each in differences(kept, first).values()
    )


def test_without_a_kept_run_nothing_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_reference(tmp_path / "kept.json") is None
    assert "--cpu --save makes it" in capsys.readouterr().out


def test_seeds_of_a_prompt_are_one_unit(first: FinishedRun) -> None:
    second = decode(EXACT, "cpu", 1, TOY)
    both = merged([first, second])
    assert len(both.outputs) == len(first.outputs) and len(both.rows) == len(first.rows) + len(second.rows)
    found = differences(first, both)["tokens_per_step"]
    assert found.change.n == len(first.outputs)
    assert found.new.n == found.old.n + len(second.rows)


def test_every_storage_is_compared_with_the_kept_run(first: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    figures = compare(first, "cpu", 1, TOY)
    assert [point["storage"] for point in figures["storages"]] == [storage.name for storage in STORAGES]
    # The toy has no storage: all runs are the kept one.
    for point in figures["storages"]:
        against = point["first_seed_against_cpu"]
        assert all(each["within_cpu_interval"] and each["difference"]["value"] == 0 for each in against.values())
    assert [(cost["old"], cost["new"]) for cost in figures["costs"]] == [(a.name, b.name) for a, b in COSTS]
    assert "within the CPU's" in capsys.readouterr().out


def test_a_run_that_fails_is_named() -> None:
    with pytest.raises(FailedRunError, match="exit code 2"):
        decode(EXACT, "cpu", 0, ["target=toy", "workload.limit=-1"])
