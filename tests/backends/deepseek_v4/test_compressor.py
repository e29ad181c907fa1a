"""Compressor: state rows, windows of both ratios, and that stored rows and whole texts agree."""

import pytest
import torch

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.rope import Rotary, apply_rope

LENGTH = 290


@pytest.fixture(params=[4, 128])
def compressor(request, tiny, randomise):
    made = Compressor(tiny(), request.param, 32)
    randomise(made)
    return made


def positions_of_rows(ratio):
    return torch.arange(ratio - 1, LENGTH, ratio)


def test_sizes_follow_the_ratio(tiny):
    sizes = {r: Compressor(tiny(), r, 32) for r in (4, 128)}
    assert [(c.window, c.channels, c.state_width) for c in sizes.values()] == [(8, 64, 128), (128, 32, 64)]


def test_a_state_row_is_values_then_scores_with_the_position_added(compressor):
    x, positions = torch.randn(3, 64), torch.tensor([0, 5, 1027])
    rows = compressor.state_rows(x, positions)
    values, scores = rows.split(compressor.channels, dim=-1)
    torch.testing.assert_close(values, compressor.wkv(x))
    torch.testing.assert_close(scores, compressor.wgate(x) + compressor.ape[positions % compressor.ratio])
    assert rows.dtype == torch.float32 and rows.shape[-1] == compressor.state_width


def test_a_row_is_the_weighted_sum_of_its_window(compressor, tiny):
    rows = compressor.state_rows(torch.randn(LENGTH, 64), torch.arange(LENGTH))
    rotary = Rotary(tiny().compress_rope)
    ratio, dim = compressor.ratio, compressor.head_dim
    made = compressor.pool_sequence(rows, rotary(torch.arange(LENGTH // ratio) * ratio))
    values, scores = rows.split(compressor.channels, dim=-1)
    for index in range(LENGTH // ratio):
        start = index * ratio
        if ratio == 4:
            seen = slice(max(start - 4, 0), start)
            v = torch.cat((values[seen, :dim], values[start : start + 4, dim:]))
            s = torch.cat((scores[seen, :dim], scores[start : start + 4, dim:]))
        else:
            v, s = values[start : start + ratio], scores[start : start + ratio]
        pooled = rms_norm((s.softmax(0) * v).sum(0), compressor.norm.weight, 1e-6)
        torch.testing.assert_close(made[index], apply_rope(pooled, rotary(torch.tensor(start))), atol=1e-5, rtol=1e-4)


def test_stored_windows_give_the_rows_of_the_whole_text(compressor, tiny):
    rows = compressor.state_rows(torch.randn(2, LENGTH, 64), torch.arange(LENGTH))
    rotary, ratio = Rotary(tiny().compress_rope), compressor.ratio
    closing = positions_of_rows(ratio)
    slots = closing.unsqueeze(-1) - torch.arange(compressor.window - 1, -1, -1)
    windows = rows[:, slots.clamp_min(0)]
    # A slot before the text may hold anything, even NaN.
    windows[:, slots < 0] = float("nan")
    rope = rotary(closing // ratio * ratio)
    stored = compressor.pool(windows, slots >= 0, rope)
    torch.testing.assert_close(stored, compressor.pool_sequence(rows, rope), atol=1e-6, rtol=1e-5)


def test_a_window_without_any_valid_slot_gives_zero(compressor, tiny):
    windows = torch.full((1, compressor.window, compressor.state_width), float("nan"))
    rope = Rotary(tiny().compress_rope)(torch.tensor([0]))
    out = compressor.pool(windows, torch.zeros(1, compressor.window, dtype=torch.bool), rope)
    assert torch.equal(out, torch.zeros(1, 32))


def test_short_texts_have_no_rows(compressor, tiny):
    rows = compressor.state_rows(torch.randn(3, 64), torch.arange(3))
    rope = Rotary(tiny().compress_rope)(torch.arange(0))
    assert compressor.pool_sequence(rows, rope).shape == (0, 32)


def test_state_rows_stay_exact_under_autocast(compressor):
    x = torch.randn(5, 64)
    exact = compressor.state_rows(x, torch.arange(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compressor.state_rows(x, torch.arange(5)), exact)
