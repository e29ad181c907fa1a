"""A pass of operator calls is a real one: the reference runs it, and kernels agree with it on a GPU."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.stored_weight import WeightFormat
from experiments.gpu.op_calls import Storage, run_ops
from experiments.gpu.sanitize import setting_of

CPU = torch.device("cpu")
FP32 = Storage(dtype=torch.float32, cache_dtype="fp32")
QUANTISED = Storage(cache_dtype="fp8", indexer_dtype="mxfp4", linears=WeightFormat.FP8, experts=WeightFormat.FP4)


@pytest.mark.parametrize("storage", [FP32, QUANTISED], ids=["fp32", "quantised"])
def test_the_reference_runs_every_operator(storage, nan_empty):
    logits_TV = run_ops(setting_of(storage, 5, CPU), Kernels.REFERENCE)
    assert logits_TV.shape == (5, 300)
    assert logits_TV.isfinite().all()
    # The head multiplies a normalised row.
    assert 0.1 < logits_TV[:-1].std() < 10


@pytest.mark.gpu
@pytest.mark.parametrize("storage", [FP32, QUANTISED], ids=["fp32", "quantised"])
def test_kernels_agree_with_the_reference_on_a_gpu(storage):
    results = []
    for kernels in (Kernels.REFERENCE, Kernels.TRITON):
        torch.manual_seed(3)
        results.append(run_ops(setting_of(storage, 5, torch.device("cuda")), kernels)[:-1])
    expected_TV, found_TV = results
    tolerance = 1e-3 if storage.dtype == torch.float32 else 0.25
    assert (found_TV - expected_TV).norm() < tolerance * expected_TV.norm()
