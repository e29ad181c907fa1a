"""Fingerprints: what gives a run a folder of its own, and what does not."""

from pathlib import Path

import pytest

from experiments.fingerprint import Inputs, baseline_key, checkpoint_hash, code_hash, inputs_of, run_key

CONFIG = {
    "target": {"checkpoint": "embedded"},
    "drafter": {"_target_": "drafters.ngram.NgramConfig", "num_draft_tokens": 3},
    "verifier": {"_target_": "specdec.verifiers.GumbelVerifierConfig"},
    "sampling": {"seed": 0},
    "workload": {"name": "builtin", "limit": 12},
    "engine": {"repeats": 3},
    "logger": {"jsonl": {}},
    "baseline": "auto",
    "require_lossless": False,
    "shard": None,
}
INPUTS = Inputs(checkpoint="c", prompts="p", code="s")
NONE = "drafters.none.NoneConfig"


def changed(**groups: object) -> dict:
    return {**CONFIG, **groups}


@pytest.mark.parametrize(
    "other",
    [
        changed(drafter={"_target_": "drafters.ngram.NgramConfig", "num_draft_tokens": 4}),
        changed(sampling={"seed": 1}),
        changed(engine={"repeats": 1}),
        changed(baseline="off"),
    ],
)
def test_run_key_changes_with_what_is_computed(other: dict) -> None:
    assert run_key(other, INPUTS) != run_key(CONFIG, INPUTS)


@pytest.mark.parametrize("field", ["checkpoint", "prompts", "code"])
def test_run_key_changes_with_every_input(field: str) -> None:
    values = {"checkpoint": "c", "prompts": "p", "code": "s", field: "other"}
    assert run_key(CONFIG, Inputs(**values)) != run_key(CONFIG, INPUTS)


def test_run_key_ignores_what_changes_no_result() -> None:
    assert run_key(changed(shard="0/4", require_lossless=True, logger={}), INPUTS) == run_key(CONFIG, INPUTS)


def test_draft_length_of_a_drafter_that_ignores_it_is_one_run() -> None:
    keys = {run_key(changed(drafter={"_target_": NONE, "num_draft_tokens": k}), INPUTS) for k in (1, 2, 3)}
    assert len(keys) == 1


def test_baseline_key_is_shared_by_drafters_and_not_by_samplings() -> None:
    key = baseline_key(CONFIG, INPUTS)
    assert baseline_key(changed(drafter={"_target_": NONE}), INPUTS) == key
    assert baseline_key(changed(sampling={"seed": 1}), INPUTS) != key
    assert baseline_key(changed(verifier={"_target_": "other"}), INPUTS) != key


def test_checkpoint_hash_follows_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    before = checkpoint_hash(tmp_path)
    assert checkpoint_hash(tmp_path) == before
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert checkpoint_hash(tmp_path) != before


def test_run_without_a_checkpoint_has_no_checkpoint_hash() -> None:
    assert inputs_of(None, "p") == Inputs(checkpoint="", prompts="p", code=code_hash())
