"""Kernels store a row in the same bytes as the row formats do."""

import pytest
import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.index_rows import fp8_index_query, hadamard_rows, mxfp4_index_query
from backends.deepseek_v4.ops.device.row_writer import page_stride, row_store, write_row
from backends.deepseek_v4.rows.choose import index_rows, kv_rows
from backends.deepseek_v4.rows.hadamard import hadamard
from specdec.errors import UnsupportedError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _write(
    rows_ptr, slots_ptr, buffer_ptr, stride,
    FORMAT: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + token * WIDTH + column, mask=column < WIDTH, other=0.0)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        write_row(row, buffer_ptr, slot, stride, FORMAT, PAGE, WIDTH, ROPE, ROUNDS, BLOCK)


@triton.jit
def _hadamard(x_ptr, out_ptr, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(out_ptr + place, hadamard_rows(tl.load(x_ptr + place), ROWS, DIM, ROUNDS))


@triton.jit
def _query(x_ptr, out_ptr, FP8: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    x = tl.load(x_ptr + place)
    if FP8:
        x = fp8_index_query(x, ROWS, DIM, ROUNDS)
    else:
        x = mxfp4_index_query(x, ROWS, DIM, ROUNDS)
    tl.store(out_ptr + place, x)


def stored(fmt, slots: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Buffers after a write by the format and after one by the kernel."""
    want, got = fmt.allocate(4, torch.device("cpu")), fmt.allocate(4, DEVICE)
    fmt.write(want, slots, rows)
    store, rows, slots = row_store(fmt), rows.to(DEVICE), slots.to(DEVICE, torch.int32)
    _write[(len(rows),)](
        rows, slots, got, page_stride(got),
        FORMAT=store.format, PAGE=store.rows_per_page, WIDTH=store.width, ROPE=store.rope, ROUNDS=store.rounds,
        BLOCK=triton.next_power_of_2(store.width),
    )  # fmt: skip
    return want, got.cpu()


def name(fmt) -> str:
    return f"{type(fmt).__name__}-{fmt.row_bytes}"


def hostile_rows(width: int) -> torch.Tensor:
    rows = torch.randn(40, width) * torch.logspace(-8, 8, 40).unsqueeze(1)
    rows[3], rows[4], rows[5, 0], rows[6, 1] = 0.0, -0.0, 450.0, 448.0
    rows[7, : width // 2], rows[9, 0] = 5.99, 6.01
    return rows


def exact_rows(fmt) -> torch.Tensor:
    """Rows whose every intermediate value is exact, so that it does not matter how it is rounded."""
    if row_store(fmt).rounds:
        rows = torch.zeros(6, fmt.width)
        rows[torch.arange(6), torch.arange(6) * 7], rows[:, 3], rows[:, 50] = 1.0, -1.0, 1.0
        return rows
    rows = torch.randint(-7, 8, (6, fmt.width)).float()
    rows[:, ::16] = 7.0
    return rows * 2.0 ** torch.arange(-3, 3).unsqueeze(1)


EXACT = [
    kv_rows("fp32", head_dim=24, rope_dim=8, rows_per_page=4),
    kv_rows("fp8", head_dim=80, rope_dim=16, rows_per_page=4),
    kv_rows("fp8", head_dim=192, rope_dim=64, rows_per_page=2),
    index_rows("plain", dim=24, rows_per_page=4, plain_dtype=torch.float32),
    index_rows("fp8", dim=256, rows_per_page=4, plain_dtype=torch.float32),
    index_rows("mxfp4", dim=64, rows_per_page=4, plain_dtype=torch.float32),
]
REAL = [kv_rows(d, head_dim=512, rope_dim=64, rows_per_page=64) for d in ("fp8", "bf16", "fp32")]
REAL += [index_rows(d, dim=128, rows_per_page=64, plain_dtype=torch.bfloat16) for d in ("plain", "fp8", "mxfp4")]


@pytest.mark.parametrize("fmt", EXACT, ids=name)
def test_bytes_of_exact_rows_lie_where_the_format_puts_them(fmt):
    slots = torch.tensor([fmt.rows_per_page, 2 * fmt.rows_per_page + 1, -1, 2 * fmt.rows_per_page, 5, 7])
    want, got = stored(fmt, slots, exact_rows(fmt))
    assert torch.equal(got[1:], want[1:])
    assert not got[0].any(), "a row without a slot was written"


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", REAL, ids=name)
def test_bytes_of_hostile_rows_equal_those_of_the_format(fmt):
    slots = torch.randperm(3 * fmt.rows_per_page)[:40] + fmt.rows_per_page
    rows = hostile_rows(fmt.width)
    if not row_store(fmt).rounds:
        # Rotated it would become NaN, whose sign is up to the machine.
        rows[8, 3] = float("inf")
    want, got = stored(fmt, slots, rows)
    assert torch.equal(got[1:], want[1:])


def test_hadamard_equals_the_format_exactly():
    x = torch.randn(4, 32)
    out = torch.empty(4, 32, device=DEVICE)
    _hadamard[(1,)](x.to(DEVICE), out, ROWS=4, DIM=32, ROUNDS=5)
    assert torch.equal(out.cpu(), hadamard(x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp8", "mxfp4"])
def test_queries_equal_those_of_the_format(dtype):
    x = hostile_rows(128)[:32]
    out = torch.empty(32, 128, device=DEVICE)
    _query[(1,)](x.to(DEVICE), out, FP8=dtype == "fp8", ROWS=32, DIM=128, ROUNDS=7)
    fmt = index_rows(dtype, dim=128, rows_per_page=64, plain_dtype=torch.float32)
    assert torch.equal(out.cpu(), fmt.prepare_query(x))


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="object"):
        row_store(object())
