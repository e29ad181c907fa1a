"""Queries made from parts equal those that the attention module projects."""

import pytest
import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.finish_queries import finish_queries
from backends.deepseek_v4.rope import Rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON], ids=lambda k: k.value)


def angles(num_tokens: int, pairs: int) -> torch.Tensor:
    turns = 7 * torch.randn(num_tokens, pairs)
    return torch.stack((turns.cos(), turns.sin()), dim=1).to(DEVICE)


@BOTH
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_queries_equal_the_modules(tiny, randomise, nan_empty, kernels, num_tokens):
    config = tiny(head_dim=24, qk_rope_head_dim=12)
    attention = Attention(config, 0)
    randomise(attention)
    attention = attention.to(DEVICE)
    x_TD, angles_T2R = torch.randn(num_tokens, config.hidden_size, device=DEVICE), angles(num_tokens, 6)
    with torch.no_grad():
        want, _, latent_TL = attention.project(x_TD, Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1]))
        halves = zip(latent_TL.chunk(2, dim=1), attention.wq_b.weight.chunk(2, dim=1), strict=True)
        parts_PTX = torch.stack([latent @ weight.t() for latent, weight in halves])
    # The columns of the queries are a slice of wider parts.
    wide = torch.cat((torch.full_like(parts_PTX[:, :, :7], float("nan")), parts_PTX), dim=-1)
    got = finish_queries(
        wide[:, :, 7:], num_heads=config.num_attention_heads, head_dim=24, angles_T2R=angles_T2R,
        eps=config.rms_norm_eps, dtype=torch.float32, kernels=kernels,
    )  # fmt: skip
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_real_widths_in_bf16_equal_the_reference_and_do_not_depend_on_other_tokens():
    parts_PTX, angles_T2R = torch.randn(4, 16, 8 * 512 + 64, device=DEVICE)[:, :, : 8 * 512], angles(16, 32)

    def queries(tokens: slice, kernels: Kernels) -> torch.Tensor:
        return finish_queries(
            parts_PTX[:, tokens], num_heads=8, head_dim=512, angles_T2R=angles_T2R[tokens].contiguous(), eps=1e-6,
            dtype=torch.bfloat16, kernels=kernels,
        )  # fmt: skip

    got = queries(slice(None), Kernels.TRITON)
    assert torch.equal(got[3:4], queries(slice(3, 4), Kernels.TRITON))
    want = queries(slice(None), Kernels.REFERENCE)
    torch.testing.assert_close(got, want, rtol=1.6e-2, atol=1.6e-2)
    assert (got == want).float().mean() > 0.99
