"""The host memory that results are copied into: integers and the bits of floats in one line."""

import torch

from specdec.rounds.readback import Readback, float_bits


def test_readback_turns_bits_back_into_floats() -> None:
    readback = Readback(12, device=torch.device("cpu"))
    floats_BX = torch.tensor([[0.1, float("-inf")], [-0.0, 3e38]])
    readback.copy(torch.cat([torch.tensor([[1, -7], [2, 1 << 40]]), float_bits(floats_BX)], dim=1))
    assert readback.integers(2, 4, stop=2) == [[1, -7], [2, 1 << 40]]
    assert torch.equal(torch.tensor(readback.floats(2, 4, start=2)), floats_BX)
    assert readback.integers(1, 4, stop=1) == [[1]]
