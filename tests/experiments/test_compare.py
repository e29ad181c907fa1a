"""compare and gate: paired differences by hand and over toy runs, and one line for every folder that cannot be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import cli, compare, gate, run
from experiments.finished_run import FinishedRun, UnusableRunError, read_run
from experiments.paired import PairedMetrics, prompt_changes
from experiments.pairing import UnpairedError, first_difference, pair
from specdec.step_row import StepRow

TOY = ("target=toy", "baseline=off", "sampling.max_new_tokens=16", "engine.threads=1")
READING = {"compare": compare.main, "gate": gate.main}


def toy_run(folder: Path, *overrides: str) -> Path:
    assert run.main([*TOY, "workload.limit=4", f"hydra.run.dir={folder}", *overrides]) == 0
    torch.set_num_threads(1)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Toy runs of one set of prompts with several drafters, and of another seed."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "nextn": toy_run(root / "nextn"),
        "plain": toy_run(root / "plain", "drafter=none"),
        "seed": toy_run(root / "seed", "sampling.seed=1"),
        "fewer": toy_run(root / "fewer", "workload.limit=3"),
    }


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Callable[[], Path]:
    """A copy of the nextn run to spoil."""

    def copy() -> Path:
        shutil.copytree(runs["nextn"], tmp_path / "copy")
        return tmp_path / "copy"

    return copy


def rows(request_id: str, *emitted: int) -> list[StepRow]:
    return [
        StepRow(
            request_id=request_id,
            round=step,
            step=step,
            seq_len=4,
            proposed=3,
            depth=3,
            verified=3,
            accepted=count - 1,
            emitted=count,
            bonus=int(count == 4),
        )
        for step, count in enumerate(emitted)
    ]


def finished(steps: dict[str, tuple[int, ...]], *, prompts: str = "p") -> FinishedRun:
    """A run with these emitted counts by request; a request without steps ended with its first token."""
    names = ("checkpoint_hash", "prompt_set_hash", "code_hash")
    return FinishedRun(
        folder=Path("somewhere"),
        config={"workload": {"name": "file"}},
        environment=dict.fromkeys(names, prompts),
        rows=tuple(row for request_id, emitted in steps.items() for row in rows(request_id, *emitted)),
        outputs={
            (request_id, 0): {"prompt_ids": [1], "output_ids": list(range(1 + sum(emitted))), "category": "c"}
            for request_id, emitted in steps.items()
        },
        timings=(),
        torn=frozenset(),
    )


def test_paired_interval_has_no_width_where_every_request_gains_the_same() -> None:
    paired = pair(finished({"z": (), "x": (1, 1), "y": (3,)}), finished({"x": (2, 2), "y": (4,), "z": ()}))
    found = PairedMetrics(paired).difference("tokens_per_step")
    assert (found.old.value, found.new.value) == (5 / 3, 8 / 3)
    assert found.old.high - found.old.low > 1
    assert [found.change.value, found.change.low, found.change.high] == pytest.approx([1, 1, 1])
    assert (found.change.n, found.detectable) == (3, pytest.approx(0))


def test_request_without_steps_does_not_shift_the_others() -> None:
    paired = pair(finished({"z": (), "x": (1,), "y": (4,)}), finished({"z": (2,), "x": (1,), "y": (4,)}))
    found = PairedMetrics(paired).difference("tokens_per_step_request_mean")
    assert (found.old.value, found.new.value) == (5 / 2, 7 / 3)
    assert [(item.key[0], item.change) for item in prompt_changes(paired)] == []


def test_a_run_does_not_differ_from_itself_and_differences_change_sign(runs: dict[str, Path]) -> None:
    one, other = read_run(runs["nextn"]), read_run(runs["plain"])
    same = PairedMetrics(pair(one, one))
    assert all(
        (found.change.low, found.change.value, found.change.high) == (0, 0, 0)
        for found in map(same.difference, same.names)
        if found.old.n
    )
    there, back = PairedMetrics(pair(one, other)), PairedMetrics(pair(other, one))
    ahead, behind = (metrics.difference("tokens_per_step").change for metrics in (there, back))
    assert (ahead.value, ahead.low, ahead.high) == pytest.approx((-behind.value, -behind.high, -behind.low))


def test_values_are_those_of_the_summary(runs: dict[str, Path]) -> None:
    one = read_run(runs["nextn"])
    metrics = PairedMetrics(pair(one, one))
    summary = json.loads((runs["nextn"] / "summary.json").read_text(encoding="utf-8"))
    for name in ("tokens_per_step", "wasted_draft_fraction", "loop_token_share", "tokens_per_step_request_mean"):
        assert metrics.difference(name).old.value == pytest.approx(summary[name]["value"])
    assert metrics.difference("survival[2]").old.value == pytest.approx(summary["survival"][1]["value"])


@pytest.mark.parametrize(
    ("old", "new", "at"), [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([2], [1], 0)]
)
def test_first_difference_counts_the_end_of_the_shorter(old: list[int], new: list[int], at: int | None) -> None:
    assert first_difference(old, new) == at


def test_compare_prints_metrics_settings_outputs_and_prompts(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", str(runs["plain"]), str(runs["nextn"])]) == 0
    out = capsys.readouterr().out
    assert "pairs: 4 requests on the same prompts" in out
    assert "drafter._target_ drafters.none.NoneConfig -> drafters.nextn.NextnConfig" in out
    assert "outputs: identical, token for token, in all 4 requests" in out
    assert "tokens_per_step: emitted tokens / steps" in out and "detectable: the true difference" in out
    assert all(f"{name}[3]" in out for name in ("survival", "conditional"))


def test_compare_names_the_first_token_that_differs(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([str(runs["nextn"]), str(runs["seed"]), "prompts=1"]) == 0
    out = capsys.readouterr().out
    assert "sampling.seed 0 -> 1" in out
    assert "outputs: 4 of 4 differ; the first is" in out and "in A," in out


def test_names_of_prompts_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = finished({"[/b]": (1,), "[red]": (1,)}), finished({"[/b]": (2,), "[red]": (4,)})
    compare.show(pair(one, other), num_prompts=2)
    listed = capsys.readouterr().out.partition("prompts that differ most")[2]
    assert 0 < listed.index("[red]") < listed.index("[/b]")
    assert "token 2 is the end in A, 2 in B" in listed


COUNTS = st.lists(st.integers(min_value=1, max_value=4), max_size=4).map(tuple)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(COUNTS, COUNTS), min_size=2, max_size=5), st.sampled_from(["tokens_per_step", "survival[1]"]))
def test_order_of_the_runs_only_changes_the_sign(
    steps: list[tuple[tuple[int, ...], tuple[int, ...]]], name: str
) -> None:
    one, other = (finished({str(i): counts[side] for i, counts in enumerate(steps)}) for side in (0, 1))
    there, back = (PairedMetrics(both).difference(name) for both in (pair(one, other), pair(other, one)))
    assert [there.old.value, there.new.value] == pytest.approx([back.new.value, back.old.value], nan_ok=True)
    negated = [-back.change.value, -back.change.high, -back.change.low]
    assert [there.change.value, there.change.low, there.change.high] == pytest.approx(negated, nan_ok=True)
    assert not (there.is_worse(0) and back.is_worse(0))


def test_unpaired_folders_are_refused_with_what_differs(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in READING.values():
        assert command([str(runs["nextn"]), str(runs["fewer"])]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert "are not runs of the same prompts: request" in error
        assert "workload.limit is 4 in the first and 3 in the second" in error
        assert "prompt_set_hash" in error


def test_other_prompts_under_the_same_ids_are_refused() -> None:
    one, other = finished({"x": (1,)}), finished({"x": (1,)}, prompts="q")
    assert "prompt files differ in settings" in pair(one, other).notes[0]
    other.outputs["x", 0]["prompt_ids"].append(2)
    with pytest.raises(
        UnpairedError, match="the prompts of request 'x' turn 0 differ; prompt_set_hash is p in the first and q"
    ):
        pair(one, other)


def test_later_turns_are_paired_after_different_answers_only() -> None:
    def talk(answer: int, prompt: int) -> FinishedRun:
        made = finished({"x": (1,)})
        second = {"prompt_ids": [1, prompt], "output_ids": [3], "category": "c"}
        first = {**made.outputs["x", 0], "output_ids": [answer]}
        object.__setattr__(made, "outputs", {("x", 0): first, ("x", 1): second})
        return made

    paired = pair(talk(5, 5), talk(6, 6))
    assert paired.keys == (("x", 0), ("x", 1)) and "1 later turns" in paired.notes[0]
    with pytest.raises(UnpairedError, match="turn 1 differ"):
        pair(talk(5, 5), talk(5, 6))


@pytest.mark.parametrize(
    ("old", "new", "wanted", "code"),
    [
        ("plain", "nextn", (), 0),
        ("nextn", "nextn", (), 0),
        ("nextn", "plain", (), 1),
        ("nextn", "plain", ("tolerance=9",), 0),
        ("nextn", "plain", ("metric=tokens_per_step_request_mean",), 1),
        ("nextn", "nextn", ("metric=survival[1]",), 0),
    ],
)
def test_gate_fails_only_when_the_interval_says_worse(
    runs: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    wanted: tuple[str, ...],
    code: int,
) -> None:
    assert cli.main(["gate", str(runs[old]), str(runs[new]), *wanted]) == code
    out = capsys.readouterr().out
    assert out.startswith("WORSE: " if code else "ok: ") and "n = 4 requests" in out and "difference" in out


def test_gate_says_what_its_tolerance_is_and_what_is_detectable(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gate", str(runs["plain"]), str(runs["nextn"]), "tolerance=0.05"]) == 0
    verdict, meaning = capsys.readouterr().out.splitlines()[-2:]
    assert "tolerance 0.05 (absolute)" in verdict and ", detectable " in verdict
    assert meaning.startswith("detectable: the true difference that four of five")
    assert cli.main(["gate", "--help"]) == 0
    told = capsys.readouterr().out
    assert "absolute, in units of the metric" in told and meaning.removeprefix("detectable: ") in told


def test_gate_names_the_settings_that_differ_but_for_the_drafter(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(runs["nextn"], tmp_path / "other")
    path = other / "config.resolved.yaml"
    text = path.read_text(encoding="utf-8")
    assert "prefill_chunk: 512" in text
    path.write_text(text.replace("prefill_chunk: 512", "prefill_chunk: 64"), encoding="utf-8")
    assert cli.main(["gate", str(runs["nextn"]), str(other)]) == 0
    assert "setting engine.prefill_chunk differs: 512 -> 64" in capsys.readouterr().out
    assert cli.main(["gate", str(runs["nextn"]), str(runs["plain"])]) == 1
    assert "setting drafter" not in capsys.readouterr().out


def test_more_waste_is_worse() -> None:
    good, bad = finished({"x": (4, 4), "y": (4,)}), finished({"x": (1, 1), "y": (1,)})
    found = PairedMetrics(pair(good, bad)).difference("wasted_draft_fraction")
    assert found.is_worse(0) and not found.is_worse(1)
    assert not PairedMetrics(pair(bad, good)).difference("wasted_draft_fraction").is_worse(0)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["metric=tokens_per_stp"], "there is no metric 'tokens_per_stp'; nearest: tokens_per_step (metrics: "),
        (["metric=survival[9]"], "there is no metric 'survival[9]'; nearest: survival["),
        (["metric=node_efficiency"], "node_efficiency was not observed in"),
        (["tolerance=-1"], "tolerance must be a number of at least 0, got '-1'"),
        (["tolerance=nan"], "tolerance must be a number of at least 0, got 'nan'"),
        (["metrc=overlap"], "unknown key metrc; nearest: metric"),
        (["--metric"], "unknown flag --metric"),
        (["more"], "gate takes BASELINE and NEW, got 3 folders"),
    ],
)
def test_gate_refuses_in_one_line(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], wanted: list[str], said: str
) -> None:
    assert gate.main([str(runs["nextn"]), str(runs["nextn"]), *wanted]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_torn_last_lines_are_tolerated_and_said(
    runs: dict[str, Path], copied: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied()
    for name in ("steps.jsonl", "outputs.jsonl"):
        text = (folder / name).read_bytes()
        (folder / name).write_bytes(text[:-9] + "\u00e9".encode()[:1])
    assert compare.main([str(folder), str(runs["nextn"])]) == 0
    out = capsys.readouterr().out
    assert "pairs: 3 requests" in out
    assert all(f"{folder / name}: the last line is torn" in out for name in ("steps.jsonl", "outputs.jsonl"))
    assert f"1 requests are only in {runs['nextn']} and left out" in out


def change_json(path: Path, **content: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | content), encoding="utf-8")


def change_first_line(path: Path, **content: object) -> None:
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    path.write_text(json.dumps(json.loads(first) | content) + "\n" + rest, encoding="utf-8")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (shutil.rmtree, "there is no such folder"),
    "running": (lambda f: change_json(f / "status.json", status="running"), "is not finished"),
    "failed": (
        lambda f: change_json(f / "status.json", status="failed", traceback="a\nOops: why\n"),
        "holds a failed run: Oops: why",
    ),
    "no status": (lambda f: (f / "status.json").unlink(), "is no run folder: it has no status.json"),
    "older with less": (
        lambda f: (f / "steps.jsonl").write_text('{"schema_version": 0, "request_id": "a"}\n'),
        "steps.jsonl:1: has no round, step, seq_len, proposed, depth, verified, accepted, emitted, bonus (older schema",
    ),
    "odd version": (lambda f: change_json(f / "summary.json", schema_version="2"), "schema_version cannot be '2'"),
    "newer": (lambda f: change_first_line(f / "outputs.jsonl", schema_version=99), "newer schema version 99"),
    "no rows file": (lambda f: (f / "steps.jsonl").unlink(), "has no steps.jsonl"),
    "no outputs": (lambda f: (f / "outputs.jsonl").write_text(""), "there is no finished request"),
    "no hash": (lambda f: (f / "env.json").write_text("{}"), "has no checkpoint_hash, prompt_set_hash, code_hash"),
    "bad config": (lambda f: (f / "config.resolved.yaml").write_text("a: [\n"), "config.resolved.yaml: cannot be read"),
    "bad line": (lambda f: (f / "steps.jsonl").write_text("{\n{}\n"), "steps.jsonl:1: not JSON"),
    "bad value": (lambda f: change_first_line(f / "steps.jsonl", accepted=None), "accepted cannot be None"),
    "odd field": (lambda f: change_first_line(f / "steps.jsonl", colour=1), "unknown field colour"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_unusable_folder_is_refused_in_one_line(
    copied: Callable[[], Path], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    spoil, said = SPOILT[what]
    folder = copied()
    spoil(folder)
    for command in READING.values():
        assert command([str(folder), str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert said in error and str(folder) in error


def test_older_rows_that_have_all_that_is_needed_are_read_with_a_note(
    copied: Callable[[], Path], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied()
    change_first_line(folder / "steps.jsonl", schema_version=0)
    for command in (compare.main, gate.main):
        assert command([str(runs["nextn"]), str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"note: {folder}: written with schema version 0" in said


def test_folder_without_a_run_says_what_is_there(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnusableRunError, match="it is empty"):
        read_run(tmp_path)
    with pytest.raises(UnusableRunError, match="has no status.json; a run lies in"):
        read_run(runs["nextn"].parent)
