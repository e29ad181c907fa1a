"""Position-keyed noise: golden integers, law, independence, and the coupling that the gumbel rule needs."""

import pytest
import torch

from specdec.noise import Salt, VocabularyNoise, row_keys, stream_key, uniforms


def _keys(num: int, salt: Salt = Salt.TARGET, stream: int = 7) -> torch.Tensor:
    return row_keys(torch.tensor([stream]), torch.arange(num), salt)


def _wrap(x: int) -> int:
    return (x + 2**63) % 2**64 - 2**63


def test_row_keys_equal_exact_integer_arithmetic() -> None:
    gamma, mix, step = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x2545F4914F6CDD1D
    for stream, position, salt in [(0, 0, 0), (-5, 3, 2), (2**63 - 1, 10**6, 3)]:
        x = _wrap(stream + salt * step + position * gamma)
        want = _wrap((x ^ (x >> 30)) * mix)
        assert row_keys(torch.tensor(stream), torch.tensor(position), salt).item() == want


def test_noise_does_not_depend_on_the_rows_computed_with_it() -> None:
    noise = VocabularyNoise(301)
    keys = _keys(9)
    together = noise.exponentials(keys.view(3, 3)).view(9, 301)
    for i in range(9):
        assert torch.equal(noise.exponentials(keys[i : i + 1])[0], together[i])


def test_uniforms_lie_strictly_inside_for_extreme_keys() -> None:
    keys = torch.cat([_keys(100_000), torch.tensor([0, -1, 2**63 - 1, -(2**63)])])
    u = uniforms(keys)
    assert u.dtype == torch.float64
    assert 0 < u.min() and u.max() < 1


def test_exponentials_follow_their_law() -> None:
    e = VocabularyNoise(1000).exponentials(_keys(400)).double().flatten()
    assert torch.isfinite(e).all() and e.min() > 0
    # 400,000 draws: mean 1 and second moment 2 within four standard errors, and a uniform after the transform.
    assert abs(e.mean() - 1) < 4 / 400_000**0.5
    assert abs((e**2).mean() - 2) < 4 * 20**0.5 / 400_000**0.5
    counts = torch.histc((1 - torch.exp(-e)).float(), bins=100, min=0, max=1).double()
    chi2 = ((counts - 4000) ** 2 / 4000).sum()
    assert 99 - 4 * 198**0.5 < chi2 < 99 + 4 * 198**0.5


def test_small_exponentials_are_as_frequent_as_they_should_be() -> None:
    e = VocabularyNoise(5000).exponentials(_keys(400))
    below = (e < 1e-4).sum().item()
    assert abs(below - 200) < 4 * 200**0.5


def test_noise_is_uncorrelated_across_positions_ids_salts_and_streams() -> None:
    noise = VocabularyNoise(400)
    base = uniform_of(noise, _keys(500))
    others = {
        "next position": uniform_of(noise, _keys(501)[1:]),
        "other salt": uniform_of(noise, _keys(500, Salt.DRAFT)),
        "next stream": uniform_of(noise, _keys(500, stream=8)),
        "next id": base.roll(1, dims=1),
    }
    for name, other in others.items():
        correlation = torch.corrcoef(torch.stack([base.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 4 / base.numel() ** 0.5, name


def uniform_of(noise: VocabularyNoise, keys: torch.Tensor) -> torch.Tensor:
    return torch.exp(-noise.exponentials(keys).double())


def test_adjacent_positions_do_not_share_high_bits() -> None:
    """Differences of uniforms at a fixed distance must be uniform on the circle, for many distances."""
    noise = VocabularyNoise(64)
    u = uniform_of(noise, _keys(4096))
    for shift in (1, 2, 3, 16, 64, 1024):
        difference = torch.remainder(u[shift:] - u[:-shift], 1.0).flatten()
        counts = torch.histc(difference, bins=64, min=0, max=1)
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert chi2 < 63 + 5 * 126**0.5, shift


def test_race_draws_with_probability_proportional_to_weight() -> None:
    weights = torch.tensor([0.0, 3.0, 1.0, 0.0, 6.0])
    draws = VocabularyNoise(5).race(weights.expand(100_000, 5), _keys(100_000))
    counts = torch.bincount(draws, minlength=5).double()
    assert counts[0] == 0 and counts[3] == 0
    expected = torch.tensor([30_000.0, 10_000.0, 60_000.0])
    chi2 = ((counts[[1, 2, 4]] - expected) ** 2 / expected).sum()
    assert chi2 < 14


def test_race_takes_the_only_weight_for_every_key() -> None:
    weights = torch.zeros(7)
    weights[5] = 1e-30
    assert (VocabularyNoise(7).race(weights.expand(50_000, 7), _keys(50_000)) == 5).all()


def test_race_agrees_mostly_between_close_laws_under_the_same_keys() -> None:
    p = torch.tensor([0.5, 0.3, 0.2]).expand(50_000, 3)
    q = torch.tensor([0.4, 0.35, 0.25]).expand(50_000, 3)
    noise, keys = VocabularyNoise(3), _keys(50_000)
    agree = (noise.race(p, keys) == noise.race(q, keys)).double().mean()
    # The coupling's agreement: sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x).
    ratio = torch.maximum(p[0] / p[0][:, None], q[0] / q[0][:, None]).sum(1)
    assert abs(agree - (1 / ratio).sum()) < 4 * 0.5 / 50_000**0.5


def test_stream_keys_are_shared_only_by_equal_explicit_seeds() -> None:
    assert stream_key(3, request_id="a", run_seed=0) == stream_key(3, request_id="b", run_seed=9)
    unseeded = {stream_key(None, request_id=f"r{i}", run_seed=s) for i in range(500) for s in range(4)}
    assert len(unseeded) == 2000
    assert stream_key(0, request_id="a", run_seed=0) not in unseeded
    assert all(-(2**63) <= key < 2**63 for key in unseeded)


@pytest.mark.gpu
def test_noise_on_a_gpu_has_the_same_integers_and_choices() -> None:
    keys = _keys(64)
    streams, positions = torch.tensor([7], device="cuda"), torch.arange(64, device="cuda")
    keys_gpu = row_keys(streams, positions, Salt.TARGET)
    assert torch.equal(keys_gpu.cpu(), keys)
    assert torch.equal(uniforms(keys_gpu).cpu(), uniforms(keys))
    here, there = VocabularyNoise(4096), VocabularyNoise(4096, device="cuda")
    torch.testing.assert_close(there.exponentials(keys_gpu).cpu(), here.exponentials(keys), rtol=1e-6, atol=0)
    weights = torch.rand(64, 4096)
    assert torch.equal(there.race(weights.cuda(), keys_gpu).cpu(), here.race(weights, keys))
