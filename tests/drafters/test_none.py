import pytest
import torch

from drafters.none import NoneConfig
from specdec.api import DraftSetup
from specdec.errors import ConfigError


def test_none_drafts_nothing_whatever_length_it_is_given(make_input) -> None:
    setup = DraftSetup(device=torch.device("cpu"), vocab_size=8, max_batch=1, max_context=8)
    drafter = NoneConfig(num_draft_tokens=7).build(setup)
    assert drafter.num_draft_tokens == 0
    assert drafter.propose(make_input([[1, 1, 1]])) is None


def test_none_refuses_a_draft_length_that_no_drafter_takes() -> None:
    with pytest.raises(ConfigError, match="drafter.num_draft_tokens"):
        NoneConfig(num_draft_tokens=100)
