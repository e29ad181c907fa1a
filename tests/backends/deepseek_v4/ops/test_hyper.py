"""Hyper-connections of a packed pass equal the modules' and do not depend on the other tokens of the pass."""

from dataclasses import dataclass

import pytest
import torch

from backends.deepseek_v4.hyper_connections import HyperWeights, collapse
from backends.deepseek_v4.hyper_connections import mix_in as module_mix_in
from backends.deepseek_v4.hyper_connections import mix_out as module_mix_out
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.hyper import MixedInput, mix_dots, mix_head, mix_in, mix_out

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON], ids=lambda k: k.value)
SIZES = pytest.mark.parametrize(("num_tokens", "streams", "width"), [(1, 4, 100), (5, 2, 64), (3, 1, 33)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Inputs of one sub-block, all random."""

    streams_TSD: torch.Tensor
    fn_MX: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm_D: torch.Tensor

    @property
    def weights(self) -> HyperWeights:
        return HyperWeights(fn=self.fn_MX, base=self.base, scale=self.scale)


def make_case(num_tokens: int, streams: int, width: int, *, head: bool = False, dtype=torch.float32) -> Case:
    rows = streams if head else 2 * streams + streams**2
    return Case(
        streams_TSD=(3 * torch.randn(num_tokens, streams, width)).to(DEVICE, dtype),
        fn_MX=(torch.randn(rows, streams * width) * (streams * width) ** -0.5).to(DEVICE),
        base=torch.randn(rows).to(DEVICE),
        scale=(1 + torch.rand(1 if head else 3)).to(DEVICE),
        norm_D=torch.randn(width).to(DEVICE),
    )


def enter(case: Case, config, kernels: Kernels, dots=None) -> MixedInput:
    dots = mix_dots(case.streams_TSD, case.fn_MX, kernels=kernels) if dots is None else dots
    return mix_in(
        dots, case.streams_TSD, case.base, case.scale, case.norm_D,
        num_rounds=config.hc_sinkhorn_iters, eps=config.rms_norm_eps, hc_eps=config.hc_eps, kernels=kernels,
    )  # fmt: skip


@BOTH
@SIZES
def test_mix_in_equals_the_module(tiny, nan_empty, kernels, num_tokens, streams, width):
    config, case = tiny(hc_mult=streams, hc_sinkhorn_iters=4), make_case(num_tokens, streams, width)
    got = enter(case, config, kernels)
    want = module_mix_in(case.streams_TSD, case.weights, config)
    torch.testing.assert_close(got.x_TD, rms_norm(want.input, case.norm_D, config.rms_norm_eps), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.post_TS, want.post, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.comb_TSS, want.comb, rtol=1e-5, atol=1e-6)


@BOTH
@SIZES
def test_mix_out_equals_the_module(tiny, nan_empty, kernels, num_tokens, streams, width):
    config, case = tiny(hc_mult=streams), make_case(num_tokens, streams, width)
    mixed = module_mix_in(case.streams_TSD, case.weights, config)
    parts_QTD = torch.randn(num_tokens, 3, width + 5, device=DEVICE).transpose(0, 1)[:, :, 5:]
    streams_TSD, dots_TNP = mix_out(parts_QTD, case.streams_TSD, mixed.post, mixed.comb, case.fn_MX, kernels=kernels)
    want = module_mix_out(parts_QTD.sum(0), case.streams_TSD, mixed)
    torch.testing.assert_close(streams_TSD, want, rtol=1e-5, atol=1e-5)
    dots_TN, num_rows = dots_TNP.sum(-1), len(case.fn_MX)
    torch.testing.assert_close(dots_TN[:, :num_rows], want.flatten(1) @ case.fn_MX.t(), rtol=1e-4, atol=1e-4)
    products_TSS = dots_TN[:, num_rows:].unflatten(1, (streams, streams))
    torch.testing.assert_close(products_TSS, want @ want.transpose(1, 2), rtol=1e-4, atol=1e-4)


@BOTH
@SIZES
def test_mix_head_equals_the_module(tiny, nan_empty, kernels, num_tokens, streams, width):
    config, case = tiny(hc_mult=streams), make_case(num_tokens, streams, width, head=True)
    dots = mix_dots(case.streams_TSD, case.fn_MX, kernels=kernels)
    got = mix_head(
        dots, case.streams_TSD, case.base, case.scale, case.norm_D,
        eps=config.rms_norm_eps, hc_eps=config.hc_eps, kernels=kernels,
    )  # fmt: skip
    want = rms_norm(collapse(case.streams_TSD, case.weights, config), case.norm_D, config.rms_norm_eps)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@BOTH
def test_streams_that_share_memory_are_read_as_streams(kernels):
    case = make_case(3, 2, 40)
    shared = torch.randn(3, 1, 40, device=DEVICE).expand(3, 2, 40)
    copied = Case(
        streams_TSD=shared.contiguous(), fn_MX=case.fn_MX, base=case.base, scale=case.scale, norm_D=case.norm_D
    )
    dots = mix_dots(shared, case.fn_MX, kernels=kernels)
    got = mix_in(dots, shared, case.base, case.scale, case.norm_D, num_rounds=3, eps=1e-6, hc_eps=1e-6, kernels=kernels)
    want = mix_in(
        mix_dots(copied.streams_TSD, case.fn_MX, kernels=kernels), copied.streams_TSD, case.base, case.scale,
        case.norm_D, num_rounds=3, eps=1e-6, hc_eps=1e-6, kernels=kernels,
    )  # fmt: skip
    assert torch.equal(got.x_TD, want.x_TD) and torch.equal(got.comb_TSS, want.comb_TSS)


def run_triton(case: Case, parts_QTD: torch.Tensor, tokens: slice, config) -> tuple[torch.Tensor, ...]:
    part = Case(
        streams_TSD=case.streams_TSD[tokens], fn_MX=case.fn_MX, base=case.base, scale=case.scale, norm_D=case.norm_D
    )
    mixed = enter(part, config, Kernels.TRITON)
    streams_TSD, dots_TNP = mix_out(
        parts_QTD[:, tokens], part.streams_TSD, mixed.post_TS, mixed.comb_TSS, part.fn_MX, kernels=Kernels.TRITON
    )
    after = enter(part, config, Kernels.TRITON, dots=dots_TNP)
    return mixed.x_TD, mixed.post_TS, mixed.comb_TSS, streams_TSD, dots_TNP, after.x_TD


@pytest.mark.parametrize("num_tokens", [6, pytest.param(17, marks=pytest.mark.gpu)])
def test_a_token_does_not_depend_on_the_others(tiny, num_tokens):
    config, case = tiny(hc_mult=2, hc_sinkhorn_iters=3), make_case(num_tokens, 2, 48)
    parts_QTD = torch.randn(3, num_tokens, 48, device=DEVICE)
    together = run_triton(case, parts_QTD, slice(None), config)
    alone = [run_triton(case, parts_QTD, slice(t, t + 1), config) for t in range(num_tokens)]
    for i, whole in enumerate(together):
        assert torch.equal(whole, torch.cat([each[i] for each in alone]))


@pytest.mark.gpu
def test_real_widths_in_bf16_equal_the_reference_and_do_not_depend_on_other_tokens(tiny):
    config = tiny(hc_mult=4, hc_sinkhorn_iters=20)
    case, parts_QTD = make_case(16, 4, 4096, dtype=torch.bfloat16), torch.randn(7, 16, 4096, device=DEVICE)
    together = run_triton(case, parts_QTD, slice(None), config)
    some = run_triton(case, parts_QTD, slice(3, 6), config)
    assert all(torch.equal(a[3:6], b) for a, b in zip(together, some, strict=True))
    mixed = enter(case, config, Kernels.REFERENCE)
    torch.testing.assert_close(together[0], mixed.x_TD, rtol=1.6e-2, atol=1e-2)
    torch.testing.assert_close(together[1], mixed.post_TS, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together[2], mixed.comb_TSS, rtol=1e-4, atol=1e-5)
    streams_TSD, dots_TNP = mix_out(
        parts_QTD, case.streams_TSD, mixed.post_TS, mixed.comb_TSS, case.fn_MX, kernels=Kernels.REFERENCE
    )
    torch.testing.assert_close(together[3], streams_TSD, rtol=1.6e-2, atol=1e-2)
    torch.testing.assert_close(together[4].sum(-1), dots_TNP.sum(-1), rtol=1e-2, atol=5e-2)
