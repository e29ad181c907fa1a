"""norm_rows and join_streams: kernels against references on odd sizes, strided rows and hostile memory."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.join_streams import join_streams
from backends.deepseek_v4.ops.norm_rows import norm_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("num_rows", "width"), [(1, 7), (5, 32), (3, 130)])
def test_rows_are_normalised(nan_empty, num_rows, width):
    x_XD = torch.randn(num_rows, 2 * width, device=DEVICE)[:, :width]
    weight_D = torch.randn(width, device=DEVICE)
    expected = norm_rows(x_XD, weight_D, 1e-6, kernels=Kernels.REFERENCE)
    torch.testing.assert_close(norm_rows(x_XD, weight_D, 1e-6, kernels=Kernels.TRITON), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("num_tokens", "parts"), [(1, (1, 1)), (3, (2, 3)), (0, (1, 1))])
def test_streams_are_joined(nan_empty, num_tokens, parts):
    stream_parts = torch.randn(parts[0], num_tokens * 4, 33, device=DEVICE)
    token_parts = torch.randn(parts[1], num_tokens, 33, device=DEVICE)
    run = {
        kernels: join_streams(stream_parts, token_parts, num_streams=4, dtype=torch.float32, kernels=kernels)
        for kernels in (Kernels.REFERENCE, Kernels.TRITON)
    }
    assert run[Kernels.TRITON].shape == (num_tokens, 4, 33)
    torch.testing.assert_close(run[Kernels.TRITON], run[Kernels.REFERENCE], atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
def test_bf16_rows_round_like_the_reference():
    x_XD, weight_D = torch.randn(9, 4096, device="cuda").bfloat16(), torch.rand(4096, device="cuda")
    expected = norm_rows(x_XD, weight_D, 1e-6, kernels=Kernels.REFERENCE)
    torch.testing.assert_close(norm_rows(x_XD, weight_D, 1e-6, kernels=Kernels.TRITON), expected, atol=0, rtol=8e-3)
