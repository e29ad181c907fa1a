"""The 584-byte K/V row, byte by byte, against a scalar writer made from the documented layout alone."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from backends.deepseek_v4.rows.split_page import SplitRows
from specdec.errors import ConfigError

CPU = torch.device("cpu")
NAN = float("nan")


V4 = Fp8KvCodec(head_dim=512, rope_dim=64)


def v4_rows(rows_per_page: int = 64) -> SplitRows:
    return SplitRows(codec=V4, rows_per_page=rows_per_page)


def fp8_value(code: int) -> float:
    """Value of an e4m3 code with exponent bias 7."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = math.ldexp(mantissa / 8, -6) if exponent == 0 else math.ldexp(1 + mantissa / 8, exponent - 7)
    return -magnitude if code & 128 else magnitude


FINITE_CODES = range(127)


def fp8_code(value: float) -> int:
    """Nearest e4m3 code, ties to the even mantissa."""
    magnitude = min(abs(value), 448.0)
    best = min(FINITE_CODES, key=lambda code: (abs(fp8_value(code) - magnitude), code & 1))
    return best | (128 if math.copysign(1.0, value) < 0 else 0)


def to_bf16(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).to(torch.bfloat16).item()


def scalar_record(row: list[float]) -> tuple[bytes, bytes]:
    """Value record and scale record of one row of 512 values."""
    rounded = [to_bf16(value) for value in row]
    codes, scales = bytearray(), bytearray()
    for block in range(7):
        values = rounded[64 * block : 64 * block + 64]
        amax = max(1e-4, *(abs(value) for value in values))
        exponent = -200
        while amax > math.ldexp(448.0, exponent):
            exponent += 1
        codes += bytes(fp8_code(math.ldexp(value, -exponent)) for value in values)
        scales.append(exponent + 127)
    rope = b"".join(struct.pack("<f", value)[2:] for value in rounded[448:])
    return bytes(codes) + rope, bytes(scales) + b"\0"


def hostile_rows() -> torch.Tensor:
    """Rows whose blocks sit on every edge of the format."""
    just_above = torch.nextafter(torch.tensor(448.0), torch.tensor(1e9)).item()
    rows = torch.randn(9, 512) * torch.tensor([1e-6, 1e-3, 0.04, 1.0, 30.0, 448.0, 1e4, 1e20, 1e30]).unsqueeze(1)
    edges = torch.zeros(8, 512)
    edges[0] = 0.0
    edges[1] = -0.0
    for i, value in enumerate([448.0, just_above, 450.0, 448.0 * 2**10, 452.0 * 2**10, 1e-4, 9.9e-5]):
        edges[2, 64 * i] = value
        edges[3, 64 * i + 63] = -value
    edges[4, ::7] = 1e-30
    edges[5, :448] = torch.linspace(-448, 448, 448)
    edges[6, 448:] = torch.linspace(-3, 3, 64)
    edges[7, 0], edges[7, 1] = 2.0**-20, 448.0
    return torch.cat([rows, edges])


def test_sizes_are_those_of_flash_mla():
    assert [v4_rows().row_bytes, v4_rows().page_bytes, v4_rows(2).page_bytes] == [584, 37440, 1728]
    assert v4_rows(1).page_bytes == 1152 and v4_rows(61).page_bytes % 576 == 0
    small = SplitRows(codec=Fp8KvCodec(head_dim=128, rope_dim=64), rows_per_page=4)
    assert [small.row_bytes, small.page_bytes] == [64 + 128 + 2, 960]


@pytest.mark.parametrize("head_dim, rope_dim", [(64, 64), (512, 48), (32, 64), (100, 64)])
def test_dims_that_cannot_be_blocked_are_refused(head_dim, rope_dim):
    with pytest.raises(ConfigError, match="multiple of 64"):
        Fp8KvCodec(head_dim=head_dim, rope_dim=rope_dim)


def test_bytes_equal_a_scalar_writer_on_hostile_values():
    rows = hostile_rows()
    values, scales = V4.encode(rows)
    for i, row in enumerate(rows.tolist()):
        want_values, want_scales = scalar_record(row)
        assert bytes(values[i].tolist()) == want_values, f"values of row {i}"
        assert bytes(scales[i].tolist()) == want_scales, f"scales of row {i}"


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    st.integers(0, 447),
)
def test_bytes_equal_a_scalar_writer_on_any_finite_values(values, place):
    row = torch.zeros(512)
    for i, value in enumerate(values):
        row[(place + 61 * i) % 512] = max(-1e37, min(1e37, value))
    got_values, got_scales = V4.encode(row.unsqueeze(0))
    assert (bytes(got_values[0].tolist()), bytes(got_scales[0].tolist())) == scalar_record(row.tolist())


def test_block_scale_is_exact_just_above_a_power():
    """fp32 log2 gives 2^0 for an amax of 448 and a bit; the value would be clamped."""
    row = torch.zeros(1, 512)
    row[0, 0] = 450.0
    _, scales = V4.encode(row)
    assert scales[0, 0] == 128
    row[0, 0] = 448.0
    assert V4.encode(row)[1][0, 0] == 127


def test_amax_is_taken_after_rounding_to_bf16():
    row = torch.zeros(1, 512)
    row[0, 0] = 448.9  # rounds down to 448 in bf16, so the block fits 2^0
    row[0, 64] = 449.1  # rounds up to 450
    assert V4.encode(row)[1][0, :2].tolist() == [127, 128]


def test_amax_floor_gives_one_exponent_to_all_small_blocks():
    rows = torch.zeros(3, 512)
    rows[1], rows[2] = 1e-30, 0.9e-4
    assert V4.encode(rows)[1][:, :7].unique().tolist() == [127 - 22]


@pytest.mark.parametrize("rows_per_page", [1, 2, 61, 64])
def test_written_bytes_lie_at_the_documented_addresses(rows_per_page):
    fmt = v4_rows(rows_per_page)
    buffer = fmt.allocate(4, CPU).fill_(0xAB)
    slots = [rows_per_page, 4 * rows_per_page - 1]
    rows = torch.randn(2, 512)
    fmt.write(buffer, torch.tensor(slots), rows)
    flat = bytes(buffer.flatten().tolist())
    untouched = bytearray(flat)
    for slot, row in zip(slots, rows.tolist(), strict=True):
        page, i = divmod(slot, rows_per_page)
        start = page * fmt.page_bytes
        values, scales = scalar_record(row)
        value_at, scale_at = start + 576 * i, start + 576 * rows_per_page + 8 * i
        assert flat[value_at : value_at + 576] == values
        assert flat[scale_at : scale_at + 8] == scales
        untouched[value_at : value_at + 576] = b"\xab" * 576
        untouched[scale_at : scale_at + 8] = b"\xab" * 8
    assert set(untouched) == {0xAB}


def test_round_trip_is_exact_for_representable_values():
    rows = torch.randint(-8, 9, (5, 512)).float() * 0.25
    fmt = v4_rows()
    buffer = fmt.allocate(2, CPU)
    fmt.write(buffer, torch.arange(64, 69), rows)
    got = fmt.read(buffer, torch.arange(64, 69))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), rows, rtol=0, atol=0)


def test_round_trip_error_is_half_a_step_of_the_block():
    rows = torch.randn(20, 512) * torch.logspace(-3, 3, 20).unsqueeze(1)
    got = V4.decode(*V4.encode(rows)).float()
    block_max = rows[:, :448].unflatten(1, (7, 64)).abs().amax(-1, keepdim=True)
    error = (got - rows)[:, :448].unflatten(1, (7, 64)).abs()
    assert (error <= block_max * (2**-4 + 2**-8)).all()
    torch.testing.assert_close(got[:, 448:], rows[:, 448:].bfloat16().float(), rtol=0, atol=0)


def test_negative_slots_write_nothing_outside_page_zero_and_read_as_zero():
    fmt = v4_rows(4)
    buffer = fmt.allocate(3, CPU).fill_(0xFF)
    before = buffer.clone()
    fmt.write(buffer, torch.tensor([-1, -1, -7]), torch.randn(3, 512))
    assert torch.equal(buffer[1:], before[1:])
    fmt.write(buffer, torch.tensor([5]), torch.ones(1, 512))
    got = fmt.read(buffer, torch.tensor([[-1, 5], [5, -9]], dtype=torch.int32))
    assert got.shape == (2, 2, 512)
    assert got.sum(-1).tolist() == [[0, 512], [512, 0]]


def test_nan_and_infinity_come_back_as_such():
    row = torch.ones(1, 512)
    row[0, 3], row[0, 70], row[0, 500] = NAN, float("-inf"), NAN
    got = V4.decode(*V4.encode(row))[0]
    assert got.isnan().nonzero().flatten().tolist() == [3, 500]
    assert got[70] == float("-inf")
    assert got[:3].tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_may_be_strided_and_of_either_type(dtype, nan_empty):
    fmt = v4_rows(7)
    wide = torch.randn(512, 5).to(dtype)
    slots = torch.tensor([7, 0, 9, 0, 20, 0, 13, 0, 11, 0])[::2]
    plain, strided = fmt.allocate(3, CPU), fmt.allocate(3, CPU)
    fmt.write(strided, slots, wide.t())
    fmt.write(plain, slots.contiguous(), wide.t().contiguous())
    assert torch.equal(plain, strided)
    grid = torch.tensor([[7, 9], [20, -1]]).t()
    assert torch.equal(fmt.read(plain, grid), fmt.read(plain, grid.contiguous()))


def test_empty_batches_are_fine():
    fmt = v4_rows()
    buffer = fmt.allocate(1, CPU)
    fmt.write(buffer, torch.empty(0, dtype=torch.int64), torch.empty(0, 512))
    assert fmt.read(buffer, torch.empty(3, 0, dtype=torch.int32)).shape == (3, 0, 512)


def test_sliding_and_compressed_rows_differ_only_by_the_rounding_before_rotation():
    """A compressed row is rotated unrounded: its rope bytes are those of the fp32 rotation."""
    angle = torch.tensor(0.7)
    row = torch.randn(1, 512)

    def rotated(values: torch.Tensor) -> torch.Tensor:
        even, odd = values[:, 448::2], values[:, 449::2]
        turned = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
        return torch.cat([values[:, :448], torch.stack(turned, -1).flatten(1)], dim=1)

    sliding, _ = V4.encode(rotated(row.bfloat16().float()).bfloat16())
    compressed, _ = V4.encode(rotated(row))
    assert torch.equal(sliding[:, :448], compressed[:, :448])
    assert torch.equal(compressed[:, 448:], rotated(row)[:, 448:].bfloat16().contiguous().view(torch.uint8))
    assert not torch.equal(sliding[:, 448:], compressed[:, 448:])
