"""Windows of a token stream: never outside it, each token once a pass, a function of the step alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.training.batches import WindowBatches
from specdec.errors import WorkloadError


@settings(deadline=None, max_examples=40)
@given(st.integers(4, 9), st.integers(1, 3), st.integers(40, 200), st.integers(0, 5))
def test_windows_are_runs_of_the_stream_and_disjoint_within_a_pass(length, sequences, size, seed):
    batches = WindowBatches(torch.arange(size), length=length, sequences=sequences, seed=seed, device="cpu")
    for number in range(2):
        seen: list[int] = []
        for index in range(batches.batches_per_pass):
            windows = batches.batch(number * batches.batches_per_pass + index)
            assert windows.shape == (sequences, length + 1)
            assert torch.equal(windows - windows[:, :1], torch.arange(length + 1).expand_as(windows))
            assert 0 <= windows.min() and windows.max() < size
            seen += windows[:, :-1].flatten().tolist()
        assert len(seen) == len(set(seen))


def test_a_step_gives_the_same_batch_whatever_was_asked_before():
    def make() -> WindowBatches:
        return WindowBatches(torch.arange(100), length=8, sequences=2, seed=1, device="cpu")

    in_order = make()
    batches = [in_order.batch(step) for step in range(12)]
    assert all(torch.equal(make().batch(step), batches[step]) for step in (11, 0, 6))


def test_a_text_too_short_for_a_batch_is_refused():
    with pytest.raises(WorkloadError, match="batch_sequences"):
        WindowBatches(torch.arange(20), length=8, sequences=4, seed=0, device="cpu")
