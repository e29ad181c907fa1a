"""DraftModelConfig refuses what cannot work; the drafter itself is tested over models in tests/backends/hf."""

import pytest
import torch

from drafters.draft_model import DraftModelConfig
from specdec.api import DraftSetup
from specdec.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens must be an integer from 1 to 31"),
        ({"proposals": "best"}, "proposals"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said) -> None:
    with pytest.raises(ConfigError, match=said):
        DraftModelConfig(**settings)


def test_building_without_a_model_names_the_checkpoint() -> None:
    setup = DraftSetup(device=torch.device("cpu"), vocab_size=5, max_batch=1, max_context=9)
    with pytest.raises(ConfigError, match="drafter.checkpoint"):
        DraftModelConfig().build(setup)
