"""Rotary embedding: frequencies, YaRN bounds, rotation and its inverse."""

import math

import pytest
import torch

from backends.deepseek_v4.config import RopeParameters, YarnScaling
from backends.deepseek_v4.rope import Rotary, apply_rope, inverse_frequencies, yarn_bounds

YARN = YarnScaling(factor=16.0, beta_fast=32, beta_slow=1, original_positions=65536)


def test_plain_frequencies_fall_geometrically():
    freq = inverse_frequencies(RopeParameters(theta=10000.0, dim=64))
    torch.testing.assert_close(freq, torch.tensor([10000.0 ** (-2 * j / 64) for j in range(32)]))


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    plain = inverse_frequencies(RopeParameters(theta=160000.0, dim=64))
    scaled = inverse_frequencies(RopeParameters(theta=160000.0, dim=64, yarn=YARN))
    low, high = yarn_bounds(64, 160000.0, YARN)
    assert (low, high) == (15, 25)
    torch.testing.assert_close(scaled[: low + 1], plain[: low + 1])
    torch.testing.assert_close(scaled[high:], plain[high:] / 16)
    assert torch.all(scaled[low + 1 : high] < plain[low + 1 : high])


@pytest.mark.parametrize(
    ("dim", "theta", "original", "expected"),
    [(16, 10000.0, 256, (0, 4)), (4, 10000.0, 2, (0, 0.001)), (8, 1.5, 65536, (57, 7))],
)
def test_bounds_are_clamped_to_the_rotated_dimensions(dim, theta, original, expected):
    assert yarn_bounds(dim, theta, YarnScaling(factor=4.0, original_positions=original)) == expected


def test_rotation_turns_interleaved_pairs_and_leaves_the_rest():
    rotary = Rotary(RopeParameters(theta=100.0, dim=4))
    x = torch.randn(3, 10)
    turned = apply_rope(x, rotary(torch.tensor([0, 1, 7])))
    assert torch.equal(turned[:, :6], x[:, :6])
    torch.testing.assert_close(turned[0], x[0])
    for pair, freq in ((6, 1.0), (8, 0.1)):
        a = 7 * freq
        expected = (
            x[2, pair] * math.cos(a) - x[2, pair + 1] * math.sin(a),
            x[2, pair] * math.sin(a) + x[2, pair + 1] * math.cos(a),
        )
        torch.testing.assert_close(turned[2, pair : pair + 2], torch.stack(expected))


def test_inverse_rotation_restores_every_head():
    rotary = Rotary(RopeParameters(theta=10000.0, dim=16, yarn=YARN))
    rope, x = rotary(torch.randint(0, 100000, (2, 5))).per_head(), torch.randn(2, 5, 3, 24)
    torch.testing.assert_close(apply_rope(apply_rope(x, rope), rope, inverse=True), x, atol=1e-5, rtol=1e-5)


def test_products_depend_on_distance_only():
    rotary = Rotary(RopeParameters(theta=10000.0, dim=16))
    q, k = torch.randn(16), torch.randn(16)

    def product(at_q, at_k):
        return apply_rope(q, rotary(torch.tensor(at_q))) @ apply_rope(k, rotary(torch.tensor(at_k)))

    torch.testing.assert_close(product(9, 4), product(509, 504), atol=1e-3, rtol=1e-4)


def test_frequencies_survive_a_cast_and_the_meta_device():
    rope = RopeParameters(theta=160000.0, dim=64, yarn=YARN)
    expected = inverse_frequencies(rope)
    assert torch.equal(Rotary(rope).to(torch.bfloat16).inv_freq, expected)
    with torch.device("meta"):
        made = Rotary(rope)
    assert torch.equal(made.to_empty(device="cpu").inv_freq, expected)
    assert list(made.state_dict()) == []


def test_frequencies_live_where_the_module_is_made(small_config):
    with torch.device("meta"):
        assert Rotary(small_config.window_rope).inv_freq.device.type == "meta"
    assert Rotary(small_config.window_rope).inv_freq.device.type == "cpu"
