import pytest
import torch

from drafters.common import proposal_of
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from drafters.oracle import OracleConfig
from specdec.api import Drafter, DraftSetup
from specdec.errors import ConfigError
from specdec.testing import TableDraft, TableTarget, check_drafter

CONFIGS = (NgramConfig, NextnConfig, OracleConfig)


@pytest.mark.parametrize("config_class", CONFIGS)
@pytest.mark.parametrize("value", [0, 100, -1, 32, "four", True, 2.0])
def test_config_refuses_a_draft_length_by_name(config_class: type, value: object) -> None:
    with pytest.raises(ConfigError, match=r"num_draft_tokens must be .* 1 to 31, got .*drafter.num_draft_tokens"):
        config_class(num_draft_tokens=value)


@pytest.mark.parametrize("config_class", CONFIGS)
def test_config_takes_every_draft_length_in_range(config_class: type) -> None:
    assert [config_class(num_draft_tokens=k).num_draft_tokens for k in (1, 31)] == [1, 31]


@pytest.mark.parametrize("config_class", (*CONFIGS, NoneConfig))
def test_config_is_a_value_that_builds_a_drafter(config_class: type) -> None:
    config = config_class()
    assert config == config_class()
    target = TableTarget()
    setup = DraftSetup(
        device=target.device, vocab_size=13, max_batch=1, max_context=96, draft_backend=TableDraft(target)
    )
    drafter = config.build(setup)
    assert isinstance(drafter, Drafter)
    assert drafter.needs == config.needs


@pytest.mark.parametrize(
    "config",
    [
        NoneConfig(num_draft_tokens=5),
        NgramConfig(num_draft_tokens=31),
        NextnConfig(num_draft_tokens=3),
        NextnConfig(num_draft_tokens=8, proposals="greedy"),
    ],
    ids=str,
)
def test_drafter_passes_the_check_for_plug_ins(config) -> None:
    tally = check_drafter(config)
    assert tally.num_rounds > 300
    assert tally.num_preemptions > 0
    if isinstance(config, NoneConfig):
        assert tally.num_drafted == 0
    else:
        assert 0 < tally.num_accepted < tally.num_drafted


def test_proposal_of_pads_ragged_drafts() -> None:
    proposal = proposal_of([[4, 5], (), [6]], torch.device("cpu"))
    assert proposal.num_drafted_B.tolist() == [2, 0, 1]
    assert proposal.tokens_BK.tolist() == [[4, 5], [0, 0], [6, 0]]


def test_proposal_of_nothing_is_none() -> None:
    assert proposal_of([(), ()], torch.device("cpu")) is None
