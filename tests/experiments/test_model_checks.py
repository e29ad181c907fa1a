"""The checks for models of others pass the models that ship: a target with every kind of attention, and its draft."""

from pathlib import Path

import pytest
import torch

from experiments import deepseek_v4
from experiments.targets import Served, TargetRequest
from specdec.testing import check_draft_backend, check_target, pages_to_check

# Beyond the window of 16 and one heavily compressed block of 128.
NUM_TOKENS = 150


@pytest.fixture
def served(checkpoint: Path) -> Served:
    loaded = deepseek_v4.load(
        TargetRequest(
            folder=checkpoint,
            cache_dtype="fp32",
            indexer_dtype="plain",
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )
    pages = pages_to_check(loaded.cache_groups, num_tokens=NUM_TOKENS + 8)
    return loaded.serve(pages, max_context=NUM_TOKENS + 8, max_batch=4)


def test_deepseek_v4_passes_the_check_for_targets(served: Served) -> None:
    check_target(served.target, num_tokens=NUM_TOKENS)


def test_nextn_passes_the_check_for_draft_models(served: Served) -> None:
    check_draft_backend(served.target, served.draft_backend, num_tokens=NUM_TOKENS)
