"""Shared fixtures: one seed, one thread, NaN-filled allocations, and the gpu marker."""

import os
import random

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton reads it when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose subject is GPU hardware where there is none, and interpreted kernels where there is one."""
    name, reason = "gpu", "needs an NVIDIA GPU"
    if torch.cuda.is_available():
        name, reason = "interpreter", "kernels are compiled here, and take no CPU tensors"
    for item in items:
        if item.get_closest_marker(name):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def nan_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every ``torch.empty`` with NaN (floats) or a hostile number, so that an unwritten element shows."""
    real = torch.empty

    def poisoned(*args, **options):
        out = real(*args, **options)
        if out.is_floating_point() and out.dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
            return out.fill_(float("nan"))
        return out.fill_(113) if out.dtype != torch.bool else out.fill_(True)

    monkeypatch.setattr(torch, "empty", poisoned)
