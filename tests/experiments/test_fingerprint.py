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
ENVIRONMENT = {"device": "cpu"}
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
    key = baseline_key(CONFIG, INPUTS, ENVIRONMENT)
    assert baseline_key(changed(drafter={"_target_": NONE}), INPUTS, ENVIRONMENT) == key
    assert baseline_key(changed(sampling={"seed": 1}), INPUTS, ENVIRONMENT) != key
    assert baseline_key(changed(verifier={"_target_": "other"}), INPUTS, ENVIRONMENT) != key
    assert baseline_key(CONFIG, INPUTS, {"device": "cuda"}) != key


FILES = ("config.json", "tokenizer.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json")


def write_folder(folder: Path, *, size: int) -> Path:
    for name in FILES:
        (folder / name).write_bytes(bytes(64))
    (folder / FILES[2]).write_bytes(bytes(size))
    return folder


def put(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"x")


@pytest.mark.parametrize("offset", [0, 3 << 19, (3 << 20) - 1])
def test_checkpoint_hash_follows_every_byte_of_a_small_file(tmp_path: Path, offset: int) -> None:
    before = checkpoint_hash(write_folder(tmp_path, size=3 << 20))
    assert checkpoint_hash(tmp_path) == before
    put(tmp_path / FILES[2], offset)
    assert checkpoint_hash(tmp_path) != before


@pytest.mark.parametrize("name", FILES)
def test_checkpoint_hash_follows_every_file_that_is_read(tmp_path: Path, name: str) -> None:
    before = checkpoint_hash(write_folder(tmp_path, size=64))
    put(tmp_path / name, 32)
    assert checkpoint_hash(tmp_path) != before


def test_checkpoint_hash_passes_over_what_no_run_reads(tmp_path: Path) -> None:
    before = checkpoint_hash(write_folder(tmp_path, size=64))
    (tmp_path / "README.md").write_text("a card", encoding="utf-8")
    (tmp_path / "original").mkdir()
    assert checkpoint_hash(tmp_path) == before


@pytest.mark.parametrize(("offset", "seen"), [(0, True), (40 << 20, False), (65 << 20, True)])
def test_checkpoint_hash_takes_both_ends_of_a_large_file(tmp_path: Path, offset: int, seen: bool) -> None:
    write_folder(tmp_path, size=64)
    with (tmp_path / FILES[2]).open("r+b") as file:
        file.truncate((65 << 20) + 1)
    before = checkpoint_hash(tmp_path)
    put(tmp_path / FILES[2], offset)
    assert (checkpoint_hash(tmp_path) != before) == seen


def test_run_without_a_checkpoint_has_no_checkpoint_hash() -> None:
    assert inputs_of(None, "p") == Inputs(checkpoint="", prompts="p", code=code_hash())
