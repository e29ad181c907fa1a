"""Drafters that wrap others, in runs: every policy, every nesting, and wrapped ones that replay the baseline."""

from collections.abc import Callable
from pathlib import Path

import pytest

from drafters.adaptive import AdaptiveConfig
from drafters.cascade import CascadeConfig
from drafters.draft_model import DraftModelConfig
from drafters.eagle3 import Eagle3Config
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.oracle import OracleConfig
from experiments.build import instantiate, own_model, with_references
from experiments.run_folder import read_json
from specdec.errors import ConfigError

TOY = ("target=toy", "workload.limit=2", "sampling.max_new_tokens=12", "hydra.run.dir=one")


@pytest.mark.parametrize(
    "drafter",
    [
        ["drafter=adaptive", "drafter.policy=confidence"],
        ["drafter=adaptive", "drafter.policy=ucb", "verifier=block", "drafter.num_draft_tokens=5"],
        ["drafter=cascade", "drafter@drafter.drafters.a=oracle", "drafter.drafters.a.accuracy=[1.0]"],
        ["drafter=cascade", "drafter@drafter.drafters.b=adaptive", "+drafter@drafter.drafters.c=oracle"],
    ],
)
def test_wrapped_drafters_run_and_stay_lossless(
    drafter: list[str], run_here: Callable[..., int], tmp_path: Path
) -> None:
    assert run_here(*drafter, *TOY) == 0
    summary = read_json(tmp_path / "one" / "summary.json")
    assert summary["lossless"] is True
    assert summary["tokens_per_step"]["value"] > 1


REFERENCES = (((1,), (2, 3)),)


def test_references_reach_wrapped_drafters_and_leave_others_as_they_are() -> None:
    lookup = NgramConfig()
    config = CascadeConfig(drafters={"a": lookup, "b": AdaptiveConfig(wrapped=OracleConfig())})
    given = with_references(config, REFERENCES)
    assert given.drafters["b"].wrapped.references == REFERENCES
    assert given.drafters["a"] is lookup
    assert with_references(lookup, REFERENCES) is lookup
    with pytest.raises(ConfigError, match="replays the baseline's output"):
        with_references(config, None)


def test_nested_settings_are_made_first_and_refused_by_their_key() -> None:
    node = {"_target_": "drafters.adaptive.AdaptiveConfig", "wrapped": {"_target_": "drafters.ngram.NgramConfig"}}
    assert instantiate(node, "drafter") == AdaptiveConfig(wrapped=NgramConfig())
    node["wrapped"] = {"_target_": "drafters.ngram.Absent"}
    with pytest.raises(ConfigError, match="drafter.wrapped._target_: module drafters.ngram has no Absent"):
        instantiate(node, "drafter")


def test_drafters_of_several_models_are_refused_before_one_serves_them_all() -> None:
    small, other, head = (
        DraftModelConfig(checkpoint="a"),
        DraftModelConfig(checkpoint="b"),
        Eagle3Config(checkpoint="h"),
    )
    same = CascadeConfig(drafters={"a": NgramConfig(), "b": small, "c": AdaptiveConfig(wrapped=small)})
    assert own_model(same) == ("experiments.hf.load_draft", "a")
    assert own_model(CascadeConfig(drafters={"a": NgramConfig(), "b": NextnConfig()})) is None
    for members, said in (
        ((small, other), "these use a and b"),
        ((NgramConfig(), AdaptiveConfig(wrapped=head), small), "these use h and a"),
        ((NextnConfig(), head), "these use the target's own draft model and h"),
    ):
        with pytest.raises(ConfigError, match=said):
            own_model(CascadeConfig(drafters=dict(zip("abc", members, strict=False))))


def test_a_cascade_of_two_models_ends_before_anything_is_loaded(run_here: Callable[..., int], capsys) -> None:
    head = ("+drafter@drafter.drafters.c=draft_model", "drafter.drafters.c.checkpoint=nowhere")
    assert run_here("drafter=cascade", *head, *TOY) == 2
    assert "the target's own draft model and nowhere" in capsys.readouterr().err
