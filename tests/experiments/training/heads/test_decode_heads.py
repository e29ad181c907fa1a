"""Runs with trained heads: output identical to plain decoding at every batch size, as chains and as trees."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from drafters.adaptive import AdaptiveConfig
from drafters.cascade import CascadeConfig
from drafters.eagle3 import Eagle3Config
from drafters.medusa import MedusaConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from experiments.build import EngineMaker, load_target
from experiments.schemas import TargetSchema
from experiments.targets import LoadedTarget
from experiments.training.heads.loop import whole_settings
from specdec.api import DrafterConfig
from specdec.engine import EngineConfig
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.testing import run_checked
from specdec.verifiers import GreedyVerifierConfig, GumbelVerifierConfig

Command = Callable[..., int]
TREE = {"tree_width": 2, "tree_depth": 3, "num_draft_tokens": 6}
TREE_OVERRIDES = tuple(f"drafter.{name}={value}" for name, value in TREE.items())
RULES = {"greedy": (GreedyVerifierConfig(), 0.0), "gumbel": (GumbelVerifierConfig(), 0.4)}
PROMPTS = ("alpha beta", "x", "gamma ray burst", "the quick brown fox")


@pytest.fixture(scope="session")
def medusa(train, settings_of, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("medusa")
    train(settings_of("medusa", max_steps=60, lr=0.003, text={"temperature": 0.0}), folder)
    return folder / "checkpoint"


@pytest.fixture
def drafting(trained, medusa: Path) -> Callable[..., DrafterConfig]:
    """Configuration of drafting with the trained head of a kind."""

    def of(kind: str, **settings: object) -> DrafterConfig:
        if kind == "eagle3":
            return Eagle3Config(checkpoint=str(trained[0] / "checkpoint"), **settings)
        return MedusaConfig(checkpoint=str(medusa), **settings)

    return of


@pytest.fixture(scope="session")
def loaded(llama: Path, settings_of) -> LoadedTarget:
    target = dataclasses.asdict(TargetSchema(_target_="experiments.hf.load", checkpoint=str(llama)))
    return load_target(whole_settings(settings_of("eagle3"), target))


def decode(loaded: LoadedTarget, drafter: DrafterConfig, rule: str, batch: int) -> list[RequestOutput]:
    verifier, temperature = RULES[rule]
    engine = EngineMaker(loaded, drafter, verifier.build(), EngineConfig(max_batch=batch, prefill_chunk=7))()
    requests = [
        Request(
            request_id=prompt,
            prompt=tuple(loaded.tokenizer.encode(prompt)),
            sampling=SamplingParams(temperature=temperature, max_new_tokens=10 + 4 * i, ignore_eos=True),
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    return list(run_checked(engine, requests).values())


@pytest.mark.parametrize("settings", [{}, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_no_token_changes_at_any_batch_size(loaded, drafting, kind: str, rule: str, settings: dict) -> None:
    plain = {output.request_id: output.output_ids for output in decode(loaded, NoneConfig(), rule, 1)}
    accepted = Counter()
    for batch in (1, 2, 3):
        outputs = decode(loaded, drafting(kind, **settings), rule, batch)
        assert {output.request_id: output.output_ids for output in outputs} == plain
        accepted.update(step.accepted for output in outputs for step in output.steps)
    assert {0} < set(accepted), "acceptance is ragged"


@pytest.mark.parametrize("wrapper", ["cascade", "adaptive"])
def test_a_head_can_be_wrapped(loaded, drafting, wrapper: str) -> None:
    head = drafting("eagle3")
    wrapped = (
        CascadeConfig(drafters={"a": NgramConfig(min_ngram=2), "b": head})
        if wrapper == "cascade"
        else AdaptiveConfig(wrapped=head)
    )
    plain = {output.request_id: output.output_ids for output in decode(loaded, NoneConfig(), "gumbel", 1)}
    outputs = decode(loaded, wrapped, "gumbel", 2)
    assert {output.request_id: output.output_ids for output in outputs} == plain
    assert any(step.accepted for output in outputs for step in output.steps)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_runs_over_a_saved_folder_are_lossless(run_here: Command, tmp_path: Path, target, head, kind) -> None:
    assert run_here(*target, *head(kind), "sampling.temperature=0.4", "require_lossless=true") == 0


@pytest.fixture
def head(drafting) -> Callable[[str], tuple[str, ...]]:
    """The overrides that draft with the trained head of a kind."""
    return lambda kind: (f"drafter={kind}", f"drafter.checkpoint={drafting(kind).checkpoint}")


@pytest.fixture
def target(llama: Path) -> tuple[str, ...]:
    few = ("workload.limit=2", "sampling.max_new_tokens=16")
    return ("target=hf", f"target.checkpoint={llama}", *few)


def test_a_tree_is_refused_by_a_v4_target_and_by_rules_for_chains(
    run_here: Command, target, head, checkpoint: Path, train, settings_of, tmp_path: Path, capsys
) -> None:
    assert run_here(*target, *head("eagle3"), *TREE_OVERRIDES, "verifier=rejection") != 0
    assert "judges chains" in capsys.readouterr().err
    v4 = {"_target_": "experiments.deepseek_v4.load", "checkpoint": str(checkpoint)}
    train(settings_of("eagle3", max_steps=1, text={"max_new_tokens": 8}), tmp_path / "head", **v4)
    chosen = (f"target.checkpoint={checkpoint}", f"drafter.checkpoint={tmp_path}/head/checkpoint", "drafter=eagle3")
    few = ("workload.limit=2", "sampling.max_new_tokens=12")
    assert run_here(*chosen, *few, *TREE_OVERRIDES) != 0
    assert "target=deepseek_v4 takes no trees" in capsys.readouterr().err
    for more in ("engine.graphs=false", "engine.graphs=true"):
        assert run_here(*chosen, *few, "engine.max_batch=2", "require_lossless=true", more) == 0


def test_a_head_of_another_target_is_refused(run_here: Command, head, checkpoint: Path, capsys) -> None:
    assert run_here(f"target.checkpoint={checkpoint}", *head("eagle3"), "workload.limit=1") != 0
    assert "a vocabulary of 258 tokens, the target has 264" in capsys.readouterr().err
    assert run_here("target=toy", *head("medusa"), "workload.limit=1") != 0
    assert "lends neither" in capsys.readouterr().err


def test_heads_draft_no_more_tokens_than_there_are(run_here: Command, target, head, capsys) -> None:
    assert run_here(*target, *head("medusa"), "drafter.num_draft_tokens=4") != 0
    assert "num_draft_tokens must be at most 3, one per Medusa head" in capsys.readouterr().err
