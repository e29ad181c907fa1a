"""Rotations of a packed pass: the reference is Rotary's maths, the kernel is right at any position."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.config import RopeParameters, YarnScaling
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.pass_angles import pass_angles
from backends.deepseek_v4.pass_values import PassAngles
from backends.deepseek_v4.rope import Rotary

BOTH = (AttentionKind.CSA, AttentionKind.HCA)
POSITIONS = [0, -1, 1, 3, 4, 127, 128, 4095, 65_535, 131_071, 999_999, 1_000_003, -1]
ALL = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])


def device_of_kernels() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def rotaries(dim: int) -> tuple[Rotary, Rotary]:
    yarn = YarnScaling(factor=16.0, original_positions=65_536)
    return (
        Rotary(RopeParameters(dim=dim, theta=10_000.0, yarn=None)),
        Rotary(RopeParameters(dim=dim, theta=160_000.0, yarn=yarn)),
    )


def positions_on(device: torch.device) -> torch.Tensor:
    """Strided positions, padding included."""
    return torch.tensor([POSITIONS, POSITIONS], dtype=torch.int32, device=device).t().contiguous()[:, 0]


def sets_of(angles: PassAngles) -> dict[str, torch.Tensor]:
    found = {"window": angles.window, "compress": angles.compress}
    return found | {kind.name: value for kind, value in angles.entries.items()}


@ALL
@pytest.mark.parametrize("dim", [64, 12])
def test_angles_are_those_of_the_rotaries(nan_empty, kernels, dim):
    window, compress = rotaries(dim)
    device = device_of_kernels()
    frequencies = window.inv_freq.to(device), compress.inv_freq.to(device)
    got = sets_of(pass_angles(positions_on(device), *frequencies, BOTH, kernels=kernels))
    positions = torch.tensor(POSITIONS).clamp(min=0)
    wanted = {"window": window(positions), "compress": compress(positions)}
    wanted |= {kind.name: compress(positions // kind.ratio * kind.ratio) for kind in BOTH}
    assert set(got) == set(wanted)
    for name, rope in wanted.items():
        assert got[name].shape == (len(POSITIONS), 2, dim // 2) and got[name].dtype == torch.float32
        torch.testing.assert_close(got[name][:, 0].cpu(), rope.cos, atol=3e-7, rtol=0)
        torch.testing.assert_close(got[name][:, 1].cpu(), rope.sin, atol=3e-7, rtol=0)


@ALL
def test_angles_are_right_to_single_precision_at_any_position(kernels):
    """Against float64 functions of the float32 angle: no digit is lost in reducing large angles."""
    window, _ = rotaries(64)
    device = device_of_kernels()
    got = pass_angles(positions_on(device), window.inv_freq.to(device), None, (), kernels=kernels)
    angles = torch.tensor(POSITIONS).clamp(min=0).float().unsqueeze(1) * window.inv_freq
    torch.testing.assert_close(got.window[:, 0].cpu().double(), angles.double().cos(), atol=2e-7, rtol=0)
    torch.testing.assert_close(got.window[:, 1].cpu().double(), angles.double().sin(), atol=2e-7, rtol=0)


@ALL
@pytest.mark.parametrize("kinds", [(), (AttentionKind.CSA,), (AttentionKind.HCA,)])
def test_only_the_kinds_that_occur_have_angles(kernels, kinds):
    window, compress = (rotary.inv_freq.to(device_of_kernels()) for rotary in rotaries(16))
    positions = positions_on(device_of_kernels())
    got = pass_angles(positions, window, compress, kinds, kernels=kernels)
    want = pass_angles(positions, window, compress, BOTH, kernels=kernels)
    assert got.compress.equal(want.compress) and set(got.entries) == set(kinds)
    for kind in kinds:
        assert got.entries[kind].equal(want.entries[kind])
    assert pass_angles(positions, window, None, (), kernels=kernels).compress is None
    assert pass_angles(positions[:0], window, compress, kinds, kernels=kernels).window.shape == (0, 2, 8)


def test_reference_reads_nothing_from_the_device():
    positions = torch.empty(5, dtype=torch.int32, device="meta")
    freqs = torch.empty(8, device="meta")
    got = pass_angles(positions, freqs, freqs, BOTH, kernels=Kernels.REFERENCE)
    assert got.entries[AttentionKind.HCA].shape == (5, 2, 8)


@pytest.mark.gpu
def test_captured_kernel_follows_the_positions():
    window, compress = (rotary.inv_freq.cuda() for rotary in rotaries(64))
    positions = torch.arange(8, dtype=torch.int32, device="cuda")
    pass_angles(positions, window, compress, BOTH, kernels=Kernels.TRITON)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = pass_angles(positions, window, compress, BOTH, kernels=Kernels.TRITON)
    positions.add_(700_000)
    graph.replay()
    want = pass_angles(positions, window, compress, BOTH, kernels=Kernels.REFERENCE)
    for name, values in sets_of(want).items():
        torch.testing.assert_close(sets_of(got)[name], values, atol=3e-7, rtol=0)
