"""Memory: what is left, what is refused, and that the caches of a checkpoint take what was predicted."""

from pathlib import Path

import pytest
import torch

from experiments.deepseek_v4 import load
from experiments.memory import available_bytes, check_fits
from experiments.targets import TargetRequest
from specdec.errors import CapacityError

CPU = torch.device("cpu")


def test_something_is_left_and_not_everything() -> None:
    available = available_bytes(CPU)
    assert available is not None
    assert 1 << 20 < available < 1 << 50


def test_what_does_not_fit_is_refused_with_both_sizes_and_the_settings() -> None:
    check_fits("caches", 1 << 10, CPU, conf="engine.max_batch")
    said = r"the caches do not fit into memory: they take 1,048,576\.0 GiB and .* GiB are available on cpu .*max_batch"
    with pytest.raises(CapacityError, match=said):
        check_fits("caches", 1 << 50, CPU, conf="engine.max_batch")


@pytest.mark.parametrize("cache_dtype", ["fp32", "bf16"])
def test_caches_of_target_and_draft_take_the_predicted_bytes(checkpoint: Path, cache_dtype: str) -> None:
    loaded = load(
        TargetRequest(
            folder=checkpoint, cache_dtype=cache_dtype, indexer_dtype="plain", device=CPU, dtype=torch.float32
        )
    )
    num_pages = {spec.group_id: 2 + number for number, spec in enumerate(loaded.cache_groups)}
    served = loaded.serve(num_pages, max_context=128, max_batch=1)
    assert served.draft_backend is not None
    made = served.target.pool.num_bytes() + served.draft_backend.pool.num_bytes()
    assert loaded.cache_bytes(num_pages) == made
