"""The heads that ship with the embedded checkpoint: sound files, the defaults of their drafters, lossless with them."""

import pytest
import torch
from safetensors.torch import load_file

from drafters.eagle3 import Eagle3Config
from drafters.medusa import MedusaConfig
from drafters.none import NoneConfig
from experiments import deepseek_v4, run
from experiments.build import EngineMaker
from experiments.checkpoints import EMBEDDED_FOLDER, EMBEDDED_HEADS, check_head_fits, folder_of
from experiments.schemas import Eagle3Schema, MedusaSchema
from experiments.targets import LoadedTarget, TargetRequest
from experiments.training.heads.outcome import training_of
from experiments.training.heads.report import CARD
from specdec.api import DrafterConfig
from specdec.engine import EngineConfig
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.verifiers import GumbelVerifierConfig

DRAFTERS = (Eagle3Config(checkpoint=Eagle3Schema().checkpoint), MedusaConfig(checkpoint=MedusaSchema().checkpoint))


@pytest.fixture(scope="module")
def loaded() -> LoadedTarget:
    return deepseek_v4.load(
        TargetRequest(
            folder=EMBEDDED_FOLDER,
            cache_dtype="fp32",
            indexer_dtype="plain",
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def decoded(loaded: LoadedTarget, drafter: DrafterConfig) -> RequestOutput:
    engine = EngineMaker(loaded, drafter, GumbelVerifierConfig().build(), EngineConfig(max_context=64))()
    prompt = tuple(loaded.tokenizer.encode("Once upon a time there was a"))
    engine.add(Request(request_id="a", prompt=prompt, sampling=SamplingParams(temperature=0.8, max_new_tokens=16)))
    return engine.run()[0]


@pytest.mark.parametrize("name", EMBEDDED_HEADS)
def test_weights_are_finite_and_small(name: str) -> None:
    (weights,) = folder_of(name).glob("*.safetensors")
    assert weights.stat().st_size < 8_000_000
    assert all(bool(value.isfinite().all()) for value in load_file(weights).values())


@pytest.mark.parametrize("name", EMBEDDED_HEADS)
def test_the_card_says_how_a_head_was_made_and_that_it_is_free(name: str) -> None:
    folder = folder_of(name)
    card = (folder / CARD).read_text(encoding="utf-8")
    assert "Apache-2.0" in card and "/tmp" not in card
    made = training_of(folder)
    assert f"`{made['command']}`" in card and made["target"] == "embedded"
    assert made["parameters"] == sum(value.numel() for value in load_file(next(folder.glob("*.safetensors"))).values())


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: drafter.checkpoint)
def test_a_head_drafts_for_the_embedded_checkpoint_without_changing_its_text(loaded, drafter) -> None:
    output = decoded(loaded, drafter)
    assert output.output_ids == decoded(loaded, NoneConfig()).output_ids
    assert sum(row.accepted for row in output.steps) > 0


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_another_target_needs_a_head_of_its_own(kind: str, capsys) -> None:
    assert run.main(["target=toy", f"drafter={kind}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "drafter.checkpoint must be set" in line and "got target=toy" in line
    assert f"python -m experiments.train trainer={kind} makes a head" in line


def test_a_model_from_elsewhere_is_told_how_to_make_its_head(capsys) -> None:
    assert run.main(["target=hf", "target.checkpoint=.", "drafter=medusa"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trainer=medusa target=hf target.checkpoint=. hydra.run.dir=FOLDER makes a head" in line


def test_the_embedded_target_may_be_named_by_its_folder() -> None:
    check_head_fits("embedded-eagle3", str(EMBEDDED_FOLDER), loader="experiments.deepseek_v4.load")
