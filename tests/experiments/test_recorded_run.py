"""Runs whose rounds are recorded: the same tokens, and a summary that says what ran."""

import json
from pathlib import Path

import pytest
import torch

from experiments.kernels import choose_kernels
from experiments.report import command as report
from specdec.errors import ConfigError

SMALL = ("target=toy", "engine.device=cpu", "workload.limit=2", "sampling.max_new_tokens=8", "drafter=nextn")


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def test_run_with_recorded_rounds_says_so_and_is_lossless(run_here, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run_here(*SMALL, "engine.graphs=true", f"hydra.run.dir={folder}") == 0
    summary = summary_of(folder)
    ran = summary["execution"]
    assert summary["lossless"] is True
    assert (ran["kernels"], ran["graphs"], ran["graphs_why"]) == ("reference", True, "engine.graphs=true")
    assert ran["captured"] == ["1x1 sampled", "1x4 sampled"]
    assert ran["num_captured_rounds"] > 0 == ran["num_eager_rounds"]
    assert ran["host_us_per_round"] > 0
    assert summary["mode"]["kernels"] == "reference"


def test_run_on_a_cpu_is_eager_by_default(run_here, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run_here(*SMALL, "baseline=off", f"hydra.run.dir={folder}") == 0
    ran = summary_of(folder)["execution"]
    assert (ran["graphs"], ran["graphs_why"]) == (False, "engine.graphs=null and the device is cpu")
    assert ran["num_eager_rounds"] > 0 == ran["num_captured_rounds"]
    assert ran["captured"] == [] and ran["host_us_per_round"] is None


def test_kernels_default_to_what_can_run() -> None:
    assert choose_kernels(None, device=torch.device("cpu"), cache_dtype="fp8") == "reference"
    assert choose_kernels("reference", device=torch.device("cuda"), cache_dtype="fp8") == "reference"


@pytest.mark.parametrize("kernels", ["triton", "flash_mla"])
def test_kernels_without_a_gpu_are_refused(kernels: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.kernels={kernels} cannot run: it needs an NVIDIA GPU"):
        choose_kernels(kernels, device=torch.device("cpu"), cache_dtype="fp8")


def test_flash_mla_needs_fp8_rows() -> None:
    with pytest.raises(ConfigError, match="engine.kernels=flash_mla cannot run"):
        choose_kernels("flash_mla", device=torch.device("cuda"), cache_dtype="bf16")


@pytest.mark.parametrize("graphs", ["true", "false"])
def test_probabilities_of_drafts_reach_rows_and_report_when_asked_for(run_here, tmp_path: Path, graphs: str) -> None:
    asked = ("verifier=rejection", "engine.record_probs=true", f"engine.graphs={graphs}", "baseline=off")
    assert run_here(*SMALL, *asked, f"hydra.run.dir={tmp_path / 'run'}") == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("target_probs", "draft_probs"):
            assert len(row.get(name, ())) == row["proposed"] and all(0 <= value <= 1 for value in row.get(name, ()))
    assert any(row["proposed"] for row in rows)
    assert report.main([str(tmp_path / "run"), f"out={tmp_path / 'report.html'}"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "draft probability 0." in page and "target probability 0." in page
