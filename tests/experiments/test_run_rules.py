"""Runs with the further rules: what they say of losslessness, and what ``require_lossless`` refuses."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from specdec.engine_config import MIN_PAGES

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
    assert run_here("drafter=ngram", "drafter.branches=3", "hydra.run.dir=tree", "workload.limit=1") == 2
    assert "takes no trees" in capsys.readouterr().err
    assert not (tmp_path / "tree").exists()


WATCHED = """
from dataclasses import dataclass

from experiments.toy import Toy

PAGES = []


@dataclass(frozen=True, kw_only=True)
class Watched(Toy):
    def serve(self, num_pages, **sizes):
        PAGES.append(max(num_pages.values()))
        return Toy.serve(self, num_pages, **sizes)


def load(request):
    return Watched(device=request.device)
"""


def test_finding_out_takes_no_caches_and_is_left_out_where_nothing_is_decoded_for_it(
    run_here: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_target.py").write_text(WATCHED)
    monkeypatch.syspath_prepend(str(tmp_path))
    common = (*SMALL, "target._target_=watched_target.load")
    assert run_here(*common, "hydra.run.dir=one") == 0
    pages = import_module("watched_target").PAGES
    tried, plain, drafted = pages
    assert tried == MIN_PAGES < plain <= drafted
    assert run_here(*common, "hydra.run.dir=two", "baseline=one/baseline") == 0
    assert run_here(*common, "hydra.run.dir=three", "baseline=off") == 0
    assert pages[3:] == [drafted, drafted]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("drafter=ngram", "drafter.branches=3", "verifier=rejection"), "verifier rejection judges chains"),
        (
            ("drafter=ngram", "engine.batch_invariant=true", "engine.fixed_rows=2"),
            "fixed_rows must be at least max_batch * (num_draft_tokens + 1) = 1 * 4 = 4",
        ),
    ],
)
def test_what_no_target_could_do_is_refused_before_a_sweep_loads_one(
    run_here: Callable[..., int], capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], said: str
) -> None:
    assert run_here("-m", "target.checkpoint=embedded", *overrides, "sampling.seed=0,1") == 2
    assert said in capsys.readouterr().err
    assert not Path("multirun").exists()


def test_plain_decoding_ignores_a_length_that_would_not_fit(run_here: Callable[..., int]) -> None:
    narrow = ("engine.batch_invariant=true", "engine.fixed_rows=1")
    assert run_here(*SMALL, "drafter=none", "drafter.num_draft_tokens=3", *narrow) == 0


def test_a_parameter_cannot_draft_more_than_a_round_may_hold(
    run_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = "drafter._target_=experiments.examples.pair_drafter.PairConfig"
    assert run_here("target=toy", pair, "+drafter.params.num_draft_tokens=40") != 0
    assert "num_draft_tokens must be an integer from 0 to 31, got 40" in capsys.readouterr().err
