"""Plain rows: values, rounding, missing slots."""

import pytest
import torch

from backends.deepseek_v4.rows.choose import index_rows, kv_rows, state_rows
from backends.deepseek_v4.rows.plain import PlainRows
from specdec.errors import ConfigError

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@DTYPES
def test_rows_come_back_rounded_to_the_storage_type(dtype):
    fmt = PlainRows(width=5, rows_per_page=3, dtype=dtype)
    buffer = fmt.allocate(4, CPU)
    rows, slots = torch.randn(4, 5), torch.tensor([11, 3, 7, 4])
    fmt.write(buffer, slots, rows)
    got = fmt.read(buffer, slots.view(2, 2).to(torch.int32))
    assert got.dtype == dtype and torch.equal(got.view(4, 5), rows.to(dtype))
    assert torch.equal(buffer[3, 2], rows[0].to(dtype))
    assert [fmt.row_bytes, fmt.page_bytes] == [5 * dtype.itemsize, 15 * dtype.itemsize]


@DTYPES
def test_missing_rows_are_zero_whatever_page_zero_holds(dtype):
    fmt = PlainRows(width=6, rows_per_page=2, dtype=dtype)
    buffer = fmt.allocate(3, CPU).fill_(float("nan"))
    fmt.write(buffer, torch.tensor([4, -1, -1]), torch.ones(3, 6))
    got = fmt.read(buffer, torch.tensor([[-1, 4, -3]]))
    assert got.sum(-1).tolist() == [[0.0, 6.0, 0.0]]
    assert buffer[1].isnan().all() and buffer[2, 1].isnan().all()


def test_signs_and_special_values_survive():
    fmt = PlainRows(width=4, rows_per_page=1, dtype=torch.float32)
    buffer = fmt.allocate(2, CPU)
    row = torch.tensor([[-0.0, float("inf"), float("nan"), 1e-45]])
    fmt.write(buffer, torch.tensor([1]), row)
    got = fmt.read(buffer, torch.tensor([1]))
    assert torch.equal(got.view(torch.int32), row.view(torch.int32))


def test_empty_and_strided_inputs(nan_empty):
    fmt = PlainRows(width=4, rows_per_page=2, dtype=torch.float32)
    buffer = fmt.allocate(5, CPU)
    fmt.write(buffer, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))
    assert fmt.read(buffer, torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 4)
    rows = torch.randn(4, 3).t()
    slots = torch.tensor([2, 0, 5, 0, 9, 0])[::2]
    fmt.write(buffer, slots, rows)
    assert torch.equal(fmt.read(buffer, torch.tensor([[2, 5], [9, -1]]).t())[1, 0], rows[1])


def test_take_equals_read_on_real_slots():
    slots = torch.tensor([[3, 4], [2, 3]], dtype=torch.int32)
    formats = [kv_rows(d, head_dim=128, rope_dim=64, rows_per_page=2) for d in ("fp8", "bf16", "fp32")]
    formats += [index_rows(d, dim=128, rows_per_page=2, plain_dtype=torch.float32) for d in ("plain", "fp8", "mxfp4")]
    for fmt in formats:
        buffer = fmt.allocate(3, CPU)
        fmt.write(buffer, torch.tensor([2, 3, 4]), torch.randn(3, 128))
        assert torch.equal(fmt.take(buffer, slots), fmt.read(buffer, slots))


@pytest.mark.parametrize("rows_per_page", [2, 4, 64])
def test_slot_zero_stays_zero_whatever_is_discarded(rows_per_page):
    """A gather that replaces -1 by 0 must not meet the NaN of a padding row."""
    formats = [kv_rows(d, head_dim=128, rope_dim=64, rows_per_page=rows_per_page) for d in ("fp8", "bf16", "fp32")]
    formats += [
        index_rows(d, dim=128, rows_per_page=rows_per_page, plain_dtype=torch.float32)
        for d in ("plain", "fp8", "mxfp4")
    ]
    for fmt in formats:
        buffer = fmt.allocate(2, CPU)
        fmt.write(buffer, torch.tensor([-1, -1, -4]), torch.full((3, 128), float("nan")))
        assert (fmt.take(buffer, torch.tensor([0])) == 0).all()
        assert (fmt.read(buffer, torch.tensor([-1])) == 0).all()
        assert buffer[1].count_nonzero() == 0


def test_choose_by_cache_type():
    sizes = {d: kv_rows(d, head_dim=512, rope_dim=64, rows_per_page=64).row_bytes for d in ("fp8", "bf16", "fp32")}
    assert sizes == {"fp8": 584, "bf16": 1024, "fp32": 2048}
    keys = {
        d: index_rows(d, dim=128, rows_per_page=64, plain_dtype=torch.bfloat16).row_bytes
        for d in ("plain", "fp8", "mxfp4")
    }
    assert keys == {"plain": 256, "fp8": 132, "mxfp4": 68}
    assert [state_rows(width=w, rows_per_page=4).row_bytes for w in (2048, 1024, 512)] == [8192, 4096, 2048]


def test_unknown_types_are_refused_by_name():
    with pytest.raises(ConfigError, match="cache_dtype must be one of fp8, fp32, bf16, got 'fp16'"):
        kv_rows("fp16", head_dim=512, rope_dim=64, rows_per_page=64)
    with pytest.raises(ConfigError, match="indexer_dtype must be one of"):
        index_rows("fp4", dim=128, rows_per_page=64, plain_dtype=torch.float32)


def test_plain_queries_need_no_preparation():
    queries = torch.randn(2, 128)
    fmt = index_rows("plain", dim=128, rows_per_page=4, plain_dtype=torch.float32)
    assert torch.equal(fmt.prepare_query(queries), queries)


@pytest.mark.parametrize("cache_dtype", ["fp8", "fp32"])
def test_slots_beyond_the_buffer_are_an_error_on_cpu(cache_dtype):
    fmt = kv_rows(cache_dtype, head_dim=128, rope_dim=64, rows_per_page=2)
    buffer = fmt.allocate(3, CPU)
    with pytest.raises(IndexError, match="out of"):
        fmt.write(buffer, torch.tensor([6]), torch.zeros(1, 128))
    with pytest.raises(IndexError, match="out of"):
        fmt.read(buffer, torch.tensor([6]))
