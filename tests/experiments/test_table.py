"""The printed table and the help text: nothing that was not observed looks like a number."""

from experiments import schemas
from experiments.app import CONF
from experiments.help import help_text
from experiments.table import busy_lines, interval, is_on_cpu, lossless_text, mode_text, run_table


def test_interval_shows_value_and_range() -> None:
    assert interval({"value": 1.5, "low": 1.25, "high": 2.0, "n": 4}) == "1.500 [1.250, 2.000]"


def test_value_without_a_range_stands_alone() -> None:
    assert interval({"value": 1.5, "low": None, "high": None, "n": 1}) == "1.500"


def test_unobserved_metric_is_a_dash() -> None:
    assert interval({"value": None, "low": None, "high": None, "n": 0}) == "-"


def test_lossless_has_three_answers() -> None:
    assert [lossless_text(value) for value in (True, False, None)] == ["yes", "no", "not compared"]


def test_run_table_sets_the_share_of_looping_tokens_beside_acceptance_with_and_without_them() -> None:
    def number(value: float) -> dict[str, float | None]:
        return {"value": value, "low": None, "high": None}

    acceptance = (
        "tokens_per_step",
        "drafted_step_share",
        "accepted_per_drafted_step",
        "draft_acceptance_rate",
        "wasted_draft_fraction",
    )
    others = ("loop_token_share", "loop_fraction", "speedup", "speedup_decode", "tokens_per_second")
    summary = {name: number(0.5) for name in (*acceptance, *others)} | {
        "without_loops": {name: number(0.25) for name in acceptance},
        "lossless": True,
        "mode": {"device": "cuda"},
        "ms_per_round": {"draft": 0.5, "verify": 2.25, "other": None},
    }
    summary["loop_token_share"] = number(0.125)
    names, every, without = (list(column.cells) for column in run_table(summary, "x").columns)
    cells = {name: pair for name, *pair in zip(names, every, without, strict=True)}
    assert cells["loop_token_share"] == ["0.125", "-"]
    assert cells["draft_acceptance_rate"] == ["0.500", "0.250"]
    assert [cells[f"{phase}_ms_per_round"][0] for phase in ("draft", "verify", "other")] == ["0.500", "2.250", "-"]


def test_busy_machine_is_named_for_the_run_and_for_its_baseline() -> None:
    def timed(cpu_s: float) -> list[dict[str, float]]:
        return [{"total_us": 2e6, "decode_us": 1e6, "num_tokens": 9, "num_decoded": 8, "cpu_us": cpu_s * 1e6}]

    summary = {"mode": {"device": "cpu"}, "speedup_cpu": {}, "timings": timed(1.0), "baseline_timings": timed(1.9)}
    (line,) = busy_lines(summary)
    assert line.startswith("warning: the machine was busy during the run: 1.0 s of CPU time took 2.0 s; the wall-clock")
    (line,) = busy_lines(summary | {"timings": timed(2.0), "baseline_timings": timed(1.5)})
    assert "during its baseline: 1.5 s of CPU time took 2.0 s" in line
    assert busy_lines(summary | {"mode": {"device": "cuda"}}) == []


def test_summary_without_cpu_times_has_no_row_and_no_warning_of_them() -> None:
    older = {"mode": {"device": "cpu"}, "timings": [{"total_us": 2.0}]}
    assert not is_on_cpu(older) and busy_lines(older) == []


def test_mode_is_one_line() -> None:
    mode = {"device": "cpu", "threads": 2, "batch_invariant": False}
    assert mode_text(mode) == "device cpu, threads 2, batch_invariant false"


def test_help_lists_every_option_and_key_with_what_is_allowed() -> None:
    schemas.register()
    text = help_text(CONF, "config", command="run", added=("experiment", "sweep"))
    for path in CONF.glob("*/*.yaml"):
        if path.parent.name != "trainer":
            assert f"{path.parent.name}={path.stem}" in text
    assert "drafter=nextn*" in text
    assert "engine.repeats=1" in text and "an integer, at least 1" in text
    assert "require_lossless=false" in text
    assert "i/n: run the i-th (from 0) of n parts of a sweep" in text
