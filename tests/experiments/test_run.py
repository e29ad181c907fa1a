"""One run, end to end: two complete folders, a table, exactness, and one line for every mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.finished_run import read_run
from experiments.memory import available_bytes
from experiments.run_folder import Status, read_json, read_jsonl, status_of
from specdec.metrics import FORMULAS, POSITION_FORMULAS

Command = Callable[..., int]
TOY = ("target=toy", "+experiment=smoke", "workload.limit=3")
PAIR = ("drafter=custom", "drafter._target_=experiments.examples.pair_drafter.PairConfig")
FILES = {"config.resolved.yaml", "env.json", "steps.jsonl", "outputs.jsonl", "summary.json", "status.json"}


def only_run(folder: Path) -> Path:
    """The one run below ``outputs/DATE/``."""
    (found,) = folder.glob("outputs/*/*")
    return found


def write_prompts(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("drafter", ["none", "ngram", "nextn", "oracle"])
def test_run_leaves_two_complete_folders(run_here: Command, tmp_path: Path, drafter: str) -> None:
    assert run_here(*TOY, f"drafter={drafter}") == 0
    folder = only_run(tmp_path)
    for place in (folder, folder / "baseline"):
        assert {entry.name for entry in place.iterdir()} >= FILES
        assert status_of(place) is Status.DONE
    summary = read_json(folder / "summary.json")
    assert summary["lossless"] is True
    assert summary["violated_identities"] == []
    assert summary["repeats_agree"] is True
    plain = read_json(folder / "baseline" / "summary.json")
    assert plain["tokens_per_step"]["value"] == 1
    assert (plain["lossless"], plain["speedup"]["value"]) == (None, None)


def test_summary_holds_every_metric_with_interval_and_count(run_here: Command, tmp_path: Path) -> None:
    assert run_here(*TOY, "drafter.num_draft_tokens=2", "engine.repeats=2") == 0
    summary = read_json(only_run(tmp_path) / "summary.json")
    for source in (summary, summary["without_loops"]):
        for name in FORMULAS:
            assert set(source[name]) == {"value", "low", "high", "n"}
        for name in POSITION_FORMULAS:
            assert all(set(entry) == {"value", "low", "high", "n"} for entry in source[name])
    assert summary["loop_token_share"].keys() == {"value", "low", "high", "n"}
    assert summary["loop_token_share"]["n"] == summary["num_output_tokens"]
    assert len(summary["survival"]) == 2
    for name in ("speedup", "speedup_decode", "speedup_cpu"):
        assert summary[name]["low"] <= summary[name]["value"] <= summary[name]["high"]
        assert summary[name]["n"] == 2
    assert len(summary["timings"]) == 2


def test_summary_and_table_say_which_mode_ran_and_where_the_time_went(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("engine.batch_invariant=true", "engine.dtype=bf16", "target.cache_dtype=fp8", "verifier=greedy")
    assert run_here(*TOY, "engine.device=cpu", "sampling.temperature=0", *overrides) == 0
    summary = read_json(only_run(tmp_path) / "summary.json")
    assert summary["mode"] == {
        "device": "cpu",
        "threads": 1,
        "dtype": "bfloat16",
        "cache_dtype": "fp8",
        "indexer_dtype": "fp8",
        "kernels": "reference",
        "batch_invariant": True,
        "max_batch": 1,
        "verifier": "greedy",
    }
    said = "mode: device cpu, threads 1, dtype bfloat16, cache_dtype fp8, indexer_dtype fp8, kernels reference"
    printed = capsys.readouterr().out
    assert said in printed and "verify_ms_per_round" in printed
    assert set(summary["ms_per_round"]) == {"draft", "verify", "other"}
    assert all(value > 0 for value in summary["ms_per_round"].values())


def test_speedup_of_one_timing_says_that_it_has_no_range(run_here: Command, capsys: pytest.CaptureFixture[str]) -> None:
    note = "speedup: one timing, no range (engine.repeats=3 gives one)"
    assert run_here(*TOY, "engine.repeats=1") == 0
    assert note in capsys.readouterr().out
    assert run_here(*TOY, "engine.repeats=2") == 0
    assert note not in capsys.readouterr().out
    assert run_here(*TOY, "engine.repeats=1", "baseline=off") == 0
    assert note not in capsys.readouterr().out


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_every_row_of_the_tables_is_defined_below_and_nothing_else(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], drafter: str
) -> None:
    assert run_here(*TOY, f"drafter={drafter}") == 0
    printed = capsys.readouterr().out
    rows = {line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")}
    rows = {name for name in rows if not name.isdigit()} - {"lossless"}
    by_phase = {name for name in rows if name.endswith("_ms_per_round")}
    expected = rows - by_phase | {"ms_per_round"} | ({"survival", "conditional"} if drafter == "ngram" else set())
    meanings = read_json(only_run(tmp_path) / "summary.json")["definitions"]
    assert {name for name in meanings if f"\n{name}: {meanings[name]}\n" in printed} == expected
    assert "drafted_step_share" in rows and len(by_phase) == 3


def test_cpu_times_of_run_and_baseline_are_kept_and_may_be_missing(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*TOY, "engine.repeats=1", "hydra.run.dir=first") == 0
    assert "speedup_cpu" in capsys.readouterr().out
    summary = read_json(tmp_path / "first" / "summary.json")
    plain = tmp_path / "first" / "baseline" / "summary.json"
    assert summary["baseline_timings"] == read_json(plain)["timings"]
    assert all(timing["cpu_us"] > 0 for timing in (*summary["timings"], *summary["baseline_timings"]))
    older = read_json(plain)
    del older["speedup_cpu"], older["baseline_timings"], older["timings"][0]["cpu_us"]
    plain.write_text(json.dumps(older), encoding="utf-8")
    assert run_here(*TOY, "engine.repeats=1", "hydra.run.dir=second", "baseline=first") == 0
    assert read_json(tmp_path / "second" / "summary.json")["speedup_cpu"]["value"] is None
    assert read_run(tmp_path / "first" / "baseline").timings[0].cpu_us == 0


def test_steps_and_outputs_tell_the_same_story(run_here: Command, tmp_path: Path) -> None:
    assert run_here(*TOY) == 0
    folder = only_run(tmp_path)
    outputs = read_jsonl(folder / "outputs.jsonl")
    steps = read_jsonl(folder / "steps.jsonl")
    assert len(outputs) == 3
    assert len({output["category"] for output in outputs}) == 3
    for output in outputs:
        own = [step for step in steps if step["request_id"] == output["request_id"]]
        emitted = [token for step in own for token in step["output_ids"]]
        assert output["output_ids"][1:] == emitted
        assert output["num_steps"] == len(own)
        assert output["finish_reason"] in ("eos", "stop", "length", "context")
        assert own[-1]["cut"] in ("length", "eos", "none")
    needed = {
        "schema_version request_id turn category round num_live step seq_len proposed depth verified accepted",
        "emitted bonus cut in_loop draft_us verify_us other_us draft_ids output_ids",
    }
    assert set(steps[0]) >= set(" ".join(needed).split())


def test_output_equals_the_baseline_token_for_token(run_here: Command, tmp_path: Path) -> None:
    assert run_here(*TOY, "drafter=ngram", "sampling.max_new_tokens=24") == 0
    folder = only_run(tmp_path)
    ours, plain = (
        {row["request_id"]: row["output_ids"] for row in read_jsonl(place / "outputs.jsonl")}
        for place in (folder, folder / "baseline")
    )
    assert ours == plain


@pytest.mark.parametrize("drafter", ["ngram", "nextn"])
def test_v4_checkpoint_decodes_losslessly(run_here: Command, tmp_path: Path, checkpoint: Path, drafter: str) -> None:
    overrides = ("workload.limit=2", "sampling.max_new_tokens=12", "engine.repeats=1", f"drafter={drafter}")
    assert run_here(f"target.checkpoint={checkpoint}", *overrides, "require_lossless=true") == 0
    folder = only_run(tmp_path)
    summary = read_json(folder / "summary.json")
    assert summary["lossless"] is True
    assert summary["tokens_per_step"]["value"] >= 1
    assert read_json(folder / "env.json")["checkpoint_hash"]


def test_prompt_ids_need_no_tokenizer(
    run_here: Command, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in checkpoint.iterdir():
        if path.name != "tokenizer.json":
            (bare / path.name).write_bytes(path.read_bytes())
    ids = write_prompts(tmp_path / "ids.jsonl", {"prompt_ids": [1, 2, 3], "max_new_tokens": 4})
    common = (f"target.checkpoint={bare}", "workload=file", "engine.repeats=1", "baseline=off")
    assert run_here(*common, f"workload.path={ids}") == 0
    (row,) = read_jsonl(only_run(tmp_path) / "outputs.jsonl")
    assert (row["prompt_ids"], row["text"]) == ([1, 2, 3], "")
    text = write_prompts(tmp_path / "text.jsonl", {"prompt": "a"})
    assert run_here(*common, f"workload.path={text}") == 1
    assert "has no tokenizer" in capsys.readouterr().err


def test_turns_continue_each_other(run_here: Command, tmp_path: Path) -> None:
    turns = {"question_id": 7, "category": "talk", "turns": ["first", "second"], "max_new_tokens": 5}
    path = write_prompts(tmp_path / "talk.jsonl", turns)
    assert run_here("target=toy", "workload=file", f"workload.path={path}", "engine.repeats=1") == 0
    first, second = read_jsonl(only_run(tmp_path) / "outputs.jsonl")
    assert [(row["request_id"], row["turn"]) for row in (first, second)] == [("7", 0), ("7", 1)]
    assert bytes(first["prompt_ids"]) == b"user: first\nassistant:"
    assert bytes(second["prompt_ids"]).startswith(b"user: first\nassistant: ")
    assert bytes(second["prompt_ids"]).endswith(b"user: second\nassistant:")


def test_row_settings_override_the_run(run_here: Command, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "max_new_tokens": 3, "ignore_eos": True}, {"prompt": "b", "ignore_eos": True}]
    path = write_prompts(tmp_path / "p.jsonl", *rows)
    overrides = ("target=toy", "workload=file", f"workload.path={path}", "sampling.max_new_tokens=6")
    assert run_here(*overrides, "engine.max_batch=2", "engine.repeats=1") == 0
    lengths = {row["request_id"]: len(row["output_ids"]) for row in read_jsonl(only_run(tmp_path) / "outputs.jsonl")}
    assert lengths == {"line-1": 3, "line-2": 6}


def test_given_baseline_is_reused_and_refused_when_it_differs(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*TOY, "drafter=none", "hydra.run.dir=plain", "baseline=off") == 0
    assert run_here(*TOY, "drafter=ngram", "hydra.run.dir=one", "baseline=plain") == 0
    assert not (tmp_path / "one" / "baseline").exists()
    assert read_json(tmp_path / "one" / "summary.json")["lossless"] is True
    capsys.readouterr()
    assert run_here(*TOY, "sampling.seed=1", "hydra.run.dir=two", "baseline=plain") == 1
    assert "seed is 0 there and 1 here" in capsys.readouterr().err
    assert run_here(*TOY, "engine.max_batch=2", "hydra.run.dir=two", "baseline=plain") == 1
    assert "engine.max_batch is 1 there and 2 here" in capsys.readouterr().err


def test_without_a_baseline_losslessness_is_unknown_and_may_be_required(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*TOY, "baseline=off", "hydra.run.dir=one") == 0
    assert read_json(tmp_path / "one" / "summary.json")["lossless"] is None
    capsys.readouterr()
    assert run_here(*TOY, "baseline=off", "hydra.run.dir=two", "require_lossless=true") == 1
    assert "not proven lossless" in capsys.readouterr().err
    assert status_of(tmp_path / "two") is Status.FAILED


def test_folder_that_cannot_be_written_is_one_line(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    assert run_here(*TOY, "hydra.run.dir=taken/run") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert "taken" in error and "hydra.run.dir" in error


@pytest.mark.parametrize(("toy", "what"), [(True, "block tables"), (False, "caches")])
def test_caches_beyond_the_memory_are_refused_in_one_line(
    run_here: Command, checkpoint: Path, capsys: pytest.CaptureFixture[str], toy: bool, what: str
) -> None:
    target = "target=toy" if toy else f"target.checkpoint={checkpoint}"
    # The smallest tables that do not fit are far larger than the smallest caches that do not.
    max_batch = 10**12 if toy else available_bytes(torch.device("cpu")) // 100_000
    assert run_here(target, "+experiment=smoke", f"engine.max_batch={max_batch}") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert f"the {what} of {max_batch} requests of " in error and "do not fit into memory: they take" in error
    assert "GiB are available" in error and "engine.max_batch, engine.max_context, engine.num_pages" in error


def test_greedy_verifier_refuses_a_row_with_a_temperature(
    run_here: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_prompts(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b", "id": "hot", "temperature": 0.5})
    common = ("target=toy", "verifier=greedy", "workload=file", f"workload.path={path}")
    assert run_here(*common, "sampling.temperature=0") == 2
    assert "row 'hot': verifier=greedy decodes at temperature 0, got temperature=0.5" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["drafter.num_draft_tokens=40"], "drafter.num_draft_tokens must be an integer, 1 to 31, got 40"),
        (["target.checkpoint=nowhere"], "nowhere: there is no such checkpoint folder"),
        (["target=toy", "workload=file", "workload.path=nowhere"], "cannot read the prompts"),
        (["target=toy", "drafter=custom", "drafter._target_=nope.X"], "drafter._target_: cannot import nope"),
        (
            ["target=toy", "drafter=custom", "drafter._target_=nope.X"],
            "No module named 'nope' (looked for in the working directory, PYTHONPATH and installed packages)",
        ),
        (["target=toy", "drafter=custom", "drafter._target_=drafters.ngram.Nope"], "has no Nope"),
        (
            ["target=toy", "drafter=custom", "drafter._target_=drafters.ngram.NgramConfg"],
            "drafter._target_: module drafters.ngram has no NgramConfg; nearest: NgramConfig",
        ),
        (
            ["target=toy", "drafter=custom", "drafter._target_=drafters.ngram.NgramConfig", "drafter.params.z=1"],
            "unexpected keyword argument 'z'; it takes num_draft_tokens, max_ngram",
        ),
        (["target=toy", "drafter=custom", "drafter._target_=pathlib.Path"], "is no drafter configuration"),
        (["target=toy", "drafter=ngram", "drafter.max_ngram=1", "drafter.min_ngram=2"], "min_ngram"),
        (["target=toy", "drafter=oracle", "baseline=off"], "baseline=off leaves none"),
        (["target=toy", "baseline=nowhere"], "baseline must be auto, off or the folder of a finished run"),
        (["target=toy", "shard=0/2"], "shard picks a part of a sweep"),
        (["target=toy", "sampling.min_new_tokens=9", "sampling.max_new_tokens=3"], "min_new_tokens"),
        (["target=toy", "engine.device=tpu"], "engine.device must be"),
        (["target=toy", "engine.graphs=true", "engine.batch_invariant=true", "engine.fixed_rows=4"], "engine.graphs"),
        (["target=toy", "engine.graph_batch_sizes=[2]"], "graph_batch_sizes must be an integer from 1 to 1, got 2"),
        (["target=toy", "engine.device=cpu", "engine.kernels=triton"], "engine.kernels=triton cannot run: it needs an"),
        (
            ["target=toy", "verifier=greedy"],
            "verifier=greedy decodes at temperature 0, got sampling.temperature=0.8; "
            "set sampling.temperature=0 or verifier=gumbel",
        ),
        (
            ["drafter=ngram", "drafter.branches=3"],
            "error: target=deepseek_v4 takes no trees (its compressor state is addressed by position): "
            "set drafter.branches=1, or target=hf",
        ),
        (["drafter=eagle3", "drafter.tree_width=2"], "set drafter.tree_width=0, or target=hf"),
        (
            ["drafter=cascade", "drafter.drafters.a.branches=2"],
            "set drafter.drafters.a.branches=1, or target=hf",
        ),
        (
            ["drafter=custom", "drafter._target_=drafters.ngram.NgramConfig", "drafter.params.branches=2"],
            "set drafter.params.branches=1, or target=hf",
        ),
        (
            ["target=hf", "target.checkpoint=."],
            "error: target=hf has no draft model of its own, such as drafter nextn needs: "
            "set drafter=ngram, draft_model or none",
        ),
        (["target=hf", "target.checkpoint=.", "drafter=adaptive"], "set drafter@drafter.wrapped=ngram or draft_model"),
        (["--frobnicate"], "unknown flag --frobnicate"),
        (["target=toy", "target.params.colour=3"], "the toy has no colour"),
        (["target=toy", "target.params.sharpness=x"], "target.params.sharpness must be a number, got 'x'"),
        (
            ["target=toy", *PAIR, "drafter.params.window=abc"],
            "error: drafter.params.window must be an integer, got 'abc'",
        ),
    ],
)
def test_mistake_is_one_line_and_no_traceback(
    run_here: Command, capsys: pytest.CaptureFixture[str], overrides: list[str], said: str
) -> None:
    assert run_here(*overrides) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("overrides", [("drafter=ngram", "drafter.branches=3"), ("target=hf", "target.checkpoint=.")])
def test_what_a_target_cannot_do_is_refused_before_it_is_loaded(
    run_here: Command, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    assert run_here(*overrides) == 2
    assert not (tmp_path / "outputs").exists()
