"""The certificate on the command line: exact, lossy, refused, all that ships, and a sweep."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import certify

Certify = Callable[..., int]


@pytest.fixture
def certify_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certify:
    """``experiments.certify`` with these overrides, in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: certify.main(overrides)


def only_result() -> dict:
    (path,) = Path("outputs").rglob(certify.RESULT_FILE)
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("verifier", ["gumbel", "block"])
def test_exact_pair(verifier: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify_here(f"verifier={verifier}", "drafter=nextn", "tokens=3") == 0
    assert "\nexact: " in capsys.readouterr().out
    assert only_result()["exact"] is True


@pytest.mark.parametrize("drafter", ["ngram", "oracle"])
def test_drafters_without_a_model(drafter: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify_here("verifier=block", f"drafter={drafter}", "tokens=3", "verbose=true") == 0
    assert "stood in" not in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["average", "ucb", "confidence"])
def test_adaptive_policies_on_the_command_line(
    policy: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here("verifier=rejection", "drafter=adaptive", f"drafter.policy={policy}", "tokens=3") == 0
    assert "drafter AdaptiveConfig" in capsys.readouterr().out
    assert only_result()["exact"] is True


@pytest.mark.parametrize("verifier", ["typical", "threshold"])
def test_lossy_pair_ends_with_its_counterexample(
    verifier: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here(f"verifier={verifier}", "drafter=nextn", "tokens=3") == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"verifier {verifier} says that it is lossy")
    assert f"\nverifier {verifier}: NOT EXACT, first after [] (drafter NextnConfig: " in said.out
    assert "law is" not in said.out, "the laws are told once, by the verdict"
    assert said.err.startswith("error: not exact: ") and said.err.count("\n") == 1
    assert "the target's law is (1/2, 1/3, 1/6)" in said.err and "total variation" in said.err
    assert only_result()["exact"] is False


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tokens=2", "tokens must be an integer, 3 to 5, got 2"),
        ("verifier=blok", "nearest: block"),
        ("tokenz=3", "unknown key tokenz; nearest: tokens"),
        ("drafter=custom", "drafter._target_ must be set"),
        ("verifier.nothing=1", "unknown key verifier.nothing"),
        ("verifier=threshold verifier.threshold=2", "verifier.threshold must be a number, 0 to 1, got 2.0"),
        ("verifier=rejection drafter=ngram drafter.branches=3", "proposes trees: take greedy, gumbel or siblings"),
    ],
)
def test_mistake_is_one_line(
    override: str, said: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here(*override.split()) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


GLOBAL_NOISE = """
import torch
from drafters.ngram import NgramConfig

class NoisyConfig(NgramConfig):
    def build(self, setup):
        inner = NgramConfig.build(self, setup)
        return Noisy(inner)

class Noisy:
    def __init__(self, inner):
        self.inner, self.num_draft_tokens, self.needs = inner, inner.num_draft_tokens, inner.needs

    def propose(self, inputs):
        torch.rand(1)
        return self.inner.propose(inputs)

    def forget(self, rows):
        self.inner.forget(rows)
"""


def test_drafter_that_cannot_be_enumerated_is_a_mistake_not_a_verdict(
    certify_here: Certify, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("noisy.py").write_text(GLOBAL_NOISE, encoding="utf-8")
    monkeypatch.syspath_prepend(".")
    assert certify_here("verifier=rejection", "drafter._target_=noisy.NoisyConfig", "tokens=3") == 2
    error = capsys.readouterr().err
    assert "draws from a global random generator" in error and error.count("\n") == 1


def test_without_settings_all_that_ships_is_judged_in_a_line_each(
    certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here() == 0
    *rules, wrong, verdict = capsys.readouterr().out.splitlines()
    assert wrong == "wrong rules found: 34 of 34"
    assert verdict.startswith("every exact rule is exact, and every wrong rule was found (")
    names = ["token ratio test", "block verification", "deterministic siblings"]
    names += [f"verifier {name}" for name in ("greedy", "gumbel", "rejection", "block", "siblings")]
    assert all(any(line.startswith(f"{name}: exact in ") for line in rules) for name in names)
    assert len(rules) == len(names) + 2 and all(len(line) < 100 for line in rules)


def test_verbose_tells_every_setting_and_every_wrong_rule(
    certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here("verbose=true") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("wrong rule: ") for line in lines) == 34
    for covered in (
        "average of past",
        "AdaptiveConfig(policy=average, min_draft_tokens=0, token_cost=0.5)",
        "CascadeConfig",
        "tree of parents",
        "verifier gumbel",
    ):
        assert any(covered in line and line.endswith("exact") for line in lines)


@pytest.mark.parametrize("verbose", ["true", "false"])
def test_verifier_judged_by_its_coupling_says_first_that_no_drafter_ran(
    verbose: str, certify_here: Certify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify_here("verifier=gumbel", "drafter=ngram", "tokens=3", f"verbose={verbose}") == 0
    first = capsys.readouterr().out.partition("\n")[0]
    assert first.startswith("verifier gumbel is judged by its coupling") and first.endswith("NgramConfig did not run")


def test_sweep_reports_the_pairs_that_are_not_exact(certify_here: Certify, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("-m", "verifier=block,threshold", "drafter=ngram", "tokens=3")
    assert certify_here(*overrides) == 1
    error = capsys.readouterr().err
    assert "1 jobs did not finish" in error and "verifier=threshold" in error and "not exact" in error
    assert certify_here(*overrides) == 1
    assert "1 of 2 jobs need not run" in capsys.readouterr().err
