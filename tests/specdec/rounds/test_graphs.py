"""Recordings by key: what is not there, and what does not fit, is said."""

import pytest
import torch

from specdec.errors import CapacityError, MetadataError
from specdec.rounds.graphs import GraphKey, GraphRunner


def test_runner_names_what_it_has_not_recorded() -> None:
    runner: GraphRunner[int] = GraphRunner(torch.device("cpu"))
    key = GraphKey(2, 4, "sampled")
    with pytest.raises(MetadataError, match="round 2x4 sampled is not recorded; recorded are: nothing"):
        runner.replay(key)
    runner.record(key, lambda: 5)
    assert (runner.replay(key), runner.keys) == (5, (key,))
    with pytest.raises(MetadataError, match="round 1x1 greedy is not recorded; recorded are: 2x4 sampled"):
        runner.replay(GraphKey(1, 1, "greedy"))


def test_runner_names_the_settings_when_memory_runs_out() -> None:
    def fail() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines")

    runner: GraphRunner[int] = GraphRunner(torch.device("cpu"))
    with pytest.raises(
        CapacityError, match=r"2x4 sampled: lower engine.graph_batch_sizes or engine.max_batch"
    ) as caught:
        runner.record(GraphKey(2, 4, "sampled"), fail)
    assert "Tried to allocate 2 GiB" in str(caught.value) and "More lines" not in str(caught.value)
    assert runner.keys == ()
