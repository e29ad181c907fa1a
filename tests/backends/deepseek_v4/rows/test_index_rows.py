"""The 132-byte and the 68-byte indexer rows, byte by byte, against scalar writers."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.rows.hadamard import rotate
from backends.deepseek_v4.rows.index_fp8 import Fp8IndexCodec
from backends.deepseek_v4.rows.index_mxfp4 import Mxfp4IndexCodec, fp4_codes, fp4_values
from backends.deepseek_v4.rows.split_page import SplitIndexRows
from specdec.errors import ConfigError

CPU = torch.device("cpu")
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
NAN = float("nan")


FP8, MXFP4 = Fp8IndexCodec(dim=128), Mxfp4IndexCodec(dim=128)


def fp8_rows(rows_per_page: int = 64) -> SplitIndexRows:
    return SplitIndexRows(codec=FP8, rows_per_page=rows_per_page)


def mxfp4_rows(rows_per_page: int = 64) -> SplitIndexRows:
    return SplitIndexRows(codec=MXFP4, rows_per_page=rows_per_page)


BOTH = pytest.mark.parametrize("fmt", [fp8_rows(), mxfp4_rows(), fp8_rows(3), mxfp4_rows(3)])


def scalar_rotated(row: list[int]) -> list[float]:
    """Rotation of integers small enough for every fp32 sum to be exact, rounded to bf16."""
    sums = [sum(v * (-1) ** (i & j).bit_count() for j, v in enumerate(row)) for i in range(128)]
    scaled = torch.tensor(sums, dtype=torch.float32) * torch.tensor(128**-0.5, dtype=torch.float32)
    return scaled.bfloat16().tolist()


def exponent_of(values: list[float], limit: float, smallest: int) -> int:
    amax = max(abs(value) for value in values)
    exponent = smallest
    while amax > math.ldexp(limit, exponent):
        exponent += 1
    return exponent


def scalar_mxfp4(row: list[int]) -> tuple[bytes, bytes]:
    rotated = scalar_rotated(row)
    codes, scales = [], []
    for block in range(4):
        values = rotated[32 * block : 32 * block + 32]
        exponent = exponent_of(values, 6.0, -15)  # 2^-15 is the smallest that holds the floor 1e-4 / 6
        scales.append(exponent + 127)
        for value in values:
            code = sum(abs(math.ldexp(value, -exponent)) > t for t in MIDPOINTS)
            codes.append(code | (8 if value < 0 and code else 0))
    return bytes(codes[2 * j] | codes[2 * j + 1] << 4 for j in range(64)), bytes(scales)


def scalar_fp8_scale(row: list[int]) -> bytes:
    return struct.pack("<f", math.ldexp(1.0, exponent_of(scalar_rotated(row), 448.0, -33)))


def test_sizes_are_those_of_the_originals():
    assert [fp8_rows().row_bytes, fp8_rows().page_bytes] == [132, 64 * 132]
    assert [mxfp4_rows().row_bytes, mxfp4_rows().page_bytes] == [68, 64 * 68]
    assert mxfp4_rows().row_bytes % 17 == 0 and fp8_rows().row_bytes % 132 == 0


@pytest.mark.parametrize("dim", [0, 16, 48, 96])
def test_mxfp4_dims_that_cannot_be_blocked_are_refused(dim):
    with pytest.raises(ConfigError, match="power of two of at least 32"):
        Mxfp4IndexCodec(dim=dim)


@pytest.mark.parametrize("dim", [0, 64, 192])
def test_fp8_dims_that_cannot_be_blocked_are_refused(dim):
    with pytest.raises(ConfigError, match="power of two of at least 128"):
        Fp8IndexCodec(dim=dim)


def test_fp4_values_of_all_codes():
    codes = torch.arange(16, dtype=torch.uint8)
    assert fp4_values(codes).tolist() == MAGNITUDES + [-m for m in MAGNITUDES]


def test_fp4_midpoints_keep_the_lower_code_and_zero_has_no_sign():
    middles = torch.tensor(MIDPOINTS)
    above = torch.nextafter(middles, torch.tensor(9.0))
    assert fp4_codes(middles).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert fp4_codes(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert fp4_codes(-middles).tolist() == [0, 9, 10, 11, 12, 13, 14]
    assert fp4_codes(torch.tensor([-0.0, -0.2, 0.0, 6.0, -6.0])).tolist() == [0, 0, 0, 7, 15]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(-100, 100), min_size=128, max_size=128))
def test_mxfp4_bytes_equal_a_scalar_writer(row):
    values, scales = MXFP4.encode(torch.tensor([row]).float())
    assert (bytes(values[0].tolist()), bytes(scales[0].tolist())) == scalar_mxfp4(row)


@pytest.mark.parametrize("row", [[0] * 128, [1] + [0] * 127, [6] * 128, [-7, 7] * 64])
def test_bytes_of_special_rows(row):
    rows = torch.tensor([row]).float()
    values, scales = MXFP4.encode(rows)
    assert (bytes(values[0].tolist()), bytes(scales[0].tolist())) == scalar_mxfp4(row)
    codes, fp8_scale = FP8.encode(rows)
    assert bytes(fp8_scale[0].tolist()) == scalar_fp8_scale(row)
    want = torch.tensor(scalar_rotated(row)) / struct.unpack("<f", scalar_fp8_scale(row))[0]
    assert torch.equal(codes[0], want.to(torch.float8_e4m3fn).view(torch.uint8))


def test_scale_floors():
    tiny = torch.full((1, 128), 1e-30)
    assert MXFP4.encode(tiny)[1].unique().tolist() == [127 - 15]
    assert FP8.encode(tiny)[1].contiguous().view(torch.float32).tolist() == [[2.0**-33]]


@pytest.mark.parametrize("rows_per_page", [1, 5, 64])
def test_mxfp4_bytes_lie_at_the_documented_addresses(rows_per_page):
    fmt = mxfp4_rows(rows_per_page)
    buffer = fmt.allocate(3, CPU).fill_(0xAB)
    slot, row = 2 * rows_per_page - 1, [7, -3] * 64
    fmt.write(buffer, torch.tensor([slot]), torch.tensor([row]).float())
    page, i = divmod(slot, rows_per_page)
    values, scales = scalar_mxfp4(row)
    flat = bytes(buffer[page].tolist())
    assert flat[64 * i : 64 * i + 64] == values
    at = 64 * rows_per_page + 4 * i
    assert flat[at : at + 4] == scales
    assert (buffer[0] == 0xAB).all() and (buffer[2] == 0xAB).all()


def test_fp8_bytes_lie_at_the_documented_addresses():
    fmt = fp8_rows(4)
    buffer = fmt.allocate(2, CPU)
    row = list(range(-64, 64))
    fmt.write(buffer, torch.tensor([6]), torch.tensor([row]).float())
    codes, scale = FP8.encode(torch.tensor([row]).float())
    assert torch.equal(buffer[1, 2 * 128 : 3 * 128], codes[0])
    assert bytes(buffer[1, 4 * 128 + 8 : 4 * 128 + 12].tolist()) == scalar_fp8_scale(row)
    assert torch.equal(buffer[1, 4 * 128 + 8 : 4 * 128 + 12], scale[0])


@BOTH
def test_read_returns_the_rotated_quantised_key(fmt):
    keys = torch.randn(6, 128) * torch.logspace(-2, 2, 6).unsqueeze(1)
    slots = torch.tensor([5, 3, 11, 7, 4, 8])
    buffer = fmt.allocate(4, CPU).fill_(0xFF)
    fmt.write(buffer, slots, keys)
    got = fmt.read(buffer, slots.view(2, 3))
    assert torch.equal(got, fmt.prepare_query(keys).view(2, 3, 128))
    scale = rotate(keys).float().abs().amax(-1, keepdim=True)
    bound = 2**-4 if fmt.codec is FP8 else 0.25
    assert ((got.view(6, 128) - rotate(keys).float()).abs() <= bound * scale).all()


@BOTH
def test_scores_of_prepared_queries_rank_like_plain_scores(fmt):
    keys, queries = torch.randn(40, 128), torch.randn(8, 128)
    keys[:8] += 0.6 * queries
    buffer = fmt.allocate(16, CPU) if fmt.rows_per_page == 3 else fmt.allocate(2, CPU)
    slots = torch.arange(3, 43)
    fmt.write(buffer, slots, keys)
    plain, stored = queries @ keys.t(), fmt.prepare_query(queries) @ fmt.read(buffer, slots).t()
    assert torch.equal(stored.argmax(-1), plain.argmax(-1))


@BOTH
def test_negative_slots_and_empty_batches(fmt):
    buffer = fmt.allocate(3, CPU).fill_(0xFF)
    before = buffer.clone()
    fmt.write(buffer, torch.tensor([-1, -5]), torch.randn(2, 128))
    fmt.write(buffer, torch.empty(0, dtype=torch.int64), torch.empty(0, 128))
    assert torch.equal(buffer[1:], before[1:])
    got = fmt.read(buffer, torch.tensor([[-1], [-2]], dtype=torch.int32))
    assert got.shape == (2, 1, 128) and torch.equal(got, torch.zeros_like(got))
    assert fmt.read(buffer, torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 128)


@BOTH
def test_nan_never_becomes_a_number(fmt):
    keys = torch.ones(2, 128)
    keys[1, 5] = NAN
    got = fmt.prepare_query(keys)
    assert got[0].isfinite().all() and got[1].isnan().all()


@BOTH
def test_huge_values_stay_huge(fmt):
    keys = torch.zeros(2, 128)
    keys[:, 0] = torch.tensor([1e38, 3e37])
    got = fmt.prepare_query(keys)
    torch.testing.assert_close(got, keys[:, :1] * 128**-0.5 * torch.ones(128), rtol=0.26, atol=0)


@BOTH
def test_strided_inputs(fmt, nan_empty):
    keys = torch.randn(128, 4).t()
    slots = torch.tensor([3, 0, 4, 0, 6, 0, 8, 0])[::2]
    first, second = fmt.allocate(3, CPU), fmt.allocate(3, CPU)
    fmt.write(first, slots, keys)
    fmt.write(second, slots.clone(), keys.contiguous())
    assert torch.equal(first, second)


def test_query_scales_pack_into_one_int32_per_head():
    queries = torch.randn(3, 8, 128)
    values, scales = MXFP4.encode(queries)
    assert values.shape == (3, 8, 64) and values.dtype == torch.uint8
    packed = scales.contiguous().view(torch.int32)
    assert packed.shape == (3, 8, 1)
    assert packed[0, 0, 0].item() == int.from_bytes(bytes(scales[0, 0].tolist()), "little", signed=True)
