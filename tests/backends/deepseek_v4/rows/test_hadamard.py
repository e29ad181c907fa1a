"""The Hadamard rotation against the matrix of popcount parities."""

import pytest
import torch

from backends.deepseek_v4.rows.hadamard import hadamard, rotate


def parity_matrix(width: int) -> torch.Tensor:
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    return torch.tensor(signs, dtype=torch.float64) * width**-0.5


@pytest.mark.parametrize("width", [1, 2, 32, 128, 256])
def test_equals_the_matrix_of_popcount_parities(width):
    values = torch.randn(5, 3, width)
    want = (values.double() @ parity_matrix(width)).float()
    torch.testing.assert_close(hadamard(values), want, rtol=1e-5, atol=1e-5)


def test_is_its_own_inverse_and_keeps_inner_products():
    a, b = torch.randn(2, 40, 128)
    torch.testing.assert_close(hadamard(hadamard(a)), a, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((hadamard(a) * hadamard(b)).sum(-1), (a * b).sum(-1), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours():
    rows = torch.randn(9, 128)
    assert torch.equal(hadamard(rows)[4], hadamard(rows[4]))


def test_rotate_rounds_before_and_after():
    row = torch.zeros(1, 128)
    row[0, 0] = 1.003  # 1 in bf16; unrounded, its rotation would round to the next bf16 number
    want = torch.full((1, 128), 128**-0.5).bfloat16()
    assert torch.equal(rotate(row), want)


def test_width_must_be_a_power_of_two():
    with pytest.raises(AssertionError, match="power of two"):
        hadamard(torch.zeros(2, 96))
