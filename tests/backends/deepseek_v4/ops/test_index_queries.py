"""index_queries: the indexer's queries of projected parts, in torch and in Triton."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.index_queries import index_queries
from backends.deepseek_v4.rope import Rope, apply_rope
from backends.deepseek_v4.rows.choose import index_rows

CPU = torch.device("cpu")


def inputs(num_parts, num_tokens, width, pairs, device=CPU):
    """Parts as a slice of columns of a wider product, and angles."""
    parts_PTX = torch.randn(num_parts, num_tokens, width + 7, device=device)[:, :, 3 : width + 3]
    radians = torch.rand(num_tokens, pairs, device=device) * 6
    return parts_PTX, torch.stack([radians.cos(), radians.sin()], dim=1)


def run(parts, angles, rows, kernels, *, num_heads, dtype=torch.float32) -> torch.Tensor:
    return index_queries(
        parts, num_heads=num_heads, head_dim=rows.width, angles_T2R=angles, rows=rows, dtype=dtype, kernels=kernels
    )


def test_reference_is_what_the_scoring_expects():
    parts, angles = inputs(3, 4, 5 * 128, 32)
    rope = Rope(cos=angles[:, 0], sin=angles[:, 1]).per_head()
    rotated = apply_rope(parts.sum(0).unflatten(-1, (5, 128)), rope)
    for indexer_dtype in ("plain", "fp8", "mxfp4"):
        rows = index_rows(indexer_dtype, dim=128, rows_per_page=4, plain_dtype=torch.float32)
        got = run(parts, angles, rows, Kernels.REFERENCE, num_heads=5)
        torch.testing.assert_close(got, rows.prepare_query(rotated).to(got.dtype))


@pytest.mark.parametrize(("num_parts", "num_tokens", "heads", "dim", "pairs"), [(1, 3, 5, 12, 3), (3, 2, 4, 16, 8)])
@pytest.mark.interpreter
@pytest.mark.usefixtures("nan_empty")
def test_kernel_equals_the_reference(num_parts, num_tokens, heads, dim, pairs):
    parts, angles = inputs(num_parts, num_tokens, heads * dim, pairs)
    rows = index_rows("plain", dim=dim, rows_per_page=4, plain_dtype=torch.float32)
    want = run(parts, angles, rows, Kernels.REFERENCE, num_heads=heads)
    got = run(parts, angles, rows, Kernels.TRITON, num_heads=heads)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    assert run(parts[:, :0], angles[:0], rows, Kernels.TRITON, num_heads=heads).shape == (0, heads, dim)


@pytest.mark.gpu
@pytest.mark.parametrize("indexer_dtype", ["plain", "fp8", "mxfp4"])
def test_gpu_kernel_equals_the_reference_and_itself_alone(indexer_dtype):
    parts, angles = inputs(2, 5, 64 * 128, 32, torch.device("cuda"))
    rows = index_rows(indexer_dtype, dim=128, rows_per_page=64, plain_dtype=torch.bfloat16)
    want = run(parts, angles, rows, Kernels.REFERENCE, num_heads=64, dtype=torch.bfloat16)
    got = run(parts, angles, rows, Kernels.TRITON, num_heads=64, dtype=torch.bfloat16)
    assert (got == want).float().mean() > 0.999
    assert (got.double() - want.double()).norm() / want.double().norm() < 2e-3
    alone = run(parts[:, 2:3], angles[2:3], rows, Kernels.TRITON, num_heads=64, dtype=torch.bfloat16)
    assert torch.equal(alone[0], got[2])
