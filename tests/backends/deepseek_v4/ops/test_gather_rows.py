"""gather_rows: what the row format reads, in one matrix."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.gather_rows import gather_rows
from backends.deepseek_v4.rows.choose import index_rows, kv_rows
from specdec.errors import UnsupportedError

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def filled(rows, num_pages, device=CPU) -> torch.Tensor:
    """Random rows; those of odd slots are NaN where the format can hold it."""
    buffer = rows.allocate(num_pages, device)
    everything = torch.arange(num_pages * rows.rows_per_page, device=device)
    values = torch.randn(len(everything), rows.width, device=device) * 3
    values[1::2] = float("nan")
    rows.put(buffer, everything, values)
    return buffer


def even_slots(num_rows, capacity, device=CPU) -> torch.Tensor:
    """Slots of written rows in any order, every fifth one missing."""
    slots_X = (torch.randint(0, capacity // 2, (num_rows,)) * 2).int()
    slots_X[::5] = -1
    return slots_X.to(device)


def check(rows, dtype, num_rows, device=CPU, num_pages=7):
    buffer = filled(rows, num_pages, device)
    slots_X = even_slots(num_rows, num_pages * rows.rows_per_page, device)
    want = gather_rows(buffer, rows, slots_X, dtype=dtype, kernels=Kernels.REFERENCE)
    got = gather_rows(buffer, rows, slots_X, dtype=dtype, kernels=Kernels.TRITON)
    assert got.dtype == dtype and got.shape == (num_rows, rows.width)
    assert (got[::5] == 0).all() and torch.equal(got, want)


@pytest.mark.interpreter
@pytest.mark.parametrize("num_rows", [1, 8, 13])
@pytest.mark.usefixtures("nan_empty")
def test_plain_rows_of_odd_width_are_copied(num_rows):
    check(kv_rows("fp32", head_dim=37, rope_dim=6, rows_per_page=6), torch.float32, num_rows)


@pytest.mark.interpreter
@pytest.mark.parametrize("rows_per_page", [2, 64])
@pytest.mark.usefixtures("nan_empty")
def test_fp8_rows_are_decoded(rows_per_page):
    rows = kv_rows("fp8", head_dim=512, rope_dim=64, rows_per_page=rows_per_page)
    check(rows, torch.float32, 11)


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, pytest.param(Kernels.TRITON, marks=pytest.mark.interpreter)])
def test_slots_of_any_shape_and_none_at_all(kernels):
    rows = kv_rows("fp32", head_dim=8, rope_dim=2, rows_per_page=4)
    buffer = filled(rows, 3)
    slots = torch.tensor([[0, 2], [4, -1], [6, 8]], dtype=torch.int32)
    assert gather_rows(buffer, rows, slots.T, dtype=torch.float32, kernels=kernels).shape == (2, 3, 8)
    assert gather_rows(buffer, rows, slots[:0], dtype=torch.float32, kernels=kernels).shape == (0, 2, 8)
    got = gather_rows(buffer, rows, slots.T, dtype=torch.float32, kernels=kernels)
    assert torch.equal(got[0, 2], rows.read(buffer, slots[2, 0]))


def test_formats_without_a_kernel_are_refused():
    pytest.importorskip("triton")
    rows = index_rows("fp8", dim=128, rows_per_page=4, plain_dtype=torch.float32)
    slots_X = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="SplitIndexRows"):
        gather_rows(rows.allocate(2, CPU), rows, slots_X, dtype=torch.float32, kernels=Kernels.TRITON)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cache_dtype", "dtype", "rows_per_page"),
    [
        ("fp8", torch.bfloat16, 64),
        ("fp8", torch.float32, 2),
        ("bf16", torch.bfloat16, 64),
        ("fp32", torch.bfloat16, 64),
    ],
)
def test_gpu_equals_the_format(cache_dtype, dtype, rows_per_page):
    rows = kv_rows(cache_dtype, head_dim=512, rope_dim=64, rows_per_page=rows_per_page)
    check(rows, dtype, 1003, CUDA, num_pages=2048 // rows_per_page)
