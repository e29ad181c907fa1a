"""Runs with the further rules: what they say of losslessness, and what ``require_lossless`` refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("target=toy", "drafter=nextn", "workload.limit=1", "sampling.max_new_tokens=8", "engine.repeats=1")


@pytest.mark.parametrize(
    ("verifier", "lossless", "how"),
    [
        ("block", True, "rule"),
        ("typical", False, "the verifier typical is lossy"),
        ("threshold", False, "the verifier threshold is lossy"),
    ],
)
def test_summary_says_whether_the_rule_is_lossless(
    verifier: str, lossless: bool, how: str, run_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*SMALL, f"verifier={verifier}") == 0
    (path,) = [path for path in Path("outputs").rglob("summary.json") if path.parent.name != "baseline"]
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert (summary["lossless"], summary["lossless_how"]) == (lossless, how)
    assert how in capsys.readouterr().out


@pytest.mark.parametrize("verifier", ["typical", "threshold"])
def test_require_lossless_refuses_a_lossy_rule_before_anything_runs(
    verifier: str, run_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*SMALL, f"verifier={verifier}", "require_lossless=true") == 2
    assert f"the verifier {verifier} is lossy" in capsys.readouterr().err
    assert not Path("outputs").exists()


def test_require_lossless_takes_an_exact_rule(run_here: Callable[..., int]) -> None:
    assert run_here(*SMALL, "verifier=block", "require_lossless=true") == 0


def test_what_cannot_work_together_is_refused_before_a_baseline_is_decoded(
    run_here: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded DeepSeek-V4 verifies no trees; finding out takes no decoding."""
    assert run_here("drafter=ngram", "drafter.branches=3", "hydra.run.dir=tree", "workload.limit=1") == 1
    assert "tree" in capsys.readouterr().err
    assert not (tmp_path / "tree" / "baseline").exists()


def test_a_parameter_cannot_draft_more_than_a_round_may_hold(
    run_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = "drafter._target_=experiments.examples.pair_drafter.PairConfig"
    assert run_here("target=toy", pair, "+drafter.params.num_draft_tokens=40") != 0
    assert "num_draft_tokens must be an integer from 0 to 31, got 40" in capsys.readouterr().err
