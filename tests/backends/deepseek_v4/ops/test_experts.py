"""experts: routed and shared experts in stored precision, whatever the routing, and the same bits for a token alone."""

from collections.abc import Iterator

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.experts import ExpertWeights, experts
from backends.deepseek_v4.ops.route.values import Routing
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from backends.deepseek_v4.weights.storage import quantize_fp4, quantize_fp8_blocks

FORMATS = tuple(WeightFormat)
LIMIT = 1.5


@pytest.fixture(autouse=True)
def _on_device() -> Iterator[None]:
    """Kernels run where they can: compiled on a GPU, interpreted elsewhere."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def make_weight(shape: tuple[int, ...], weight_format: WeightFormat, dtype: torch.dtype) -> StoredWeight:
    dense = torch.randn(shape) * shape[-1] ** -0.5 * 2.0 ** torch.randint(-2, 2, (*shape[:-1], 1))
    if weight_format is WeightFormat.PLAIN:
        return StoredWeight(values=dense.to(dtype))
    if weight_format is WeightFormat.FP4:
        values, scales = quantize_fp4(dense)
    else:
        stacked = [quantize_fp8_blocks(each) for each in dense.reshape(-1, *shape[-2:])]
        values = torch.stack([v.view(torch.uint8) for v, _ in stacked]).view(shape).view(torch.float8_e4m3fn)
        scales = torch.stack([s.view(torch.uint8) for _, s in stacked])
        scales = scales.view(*shape[:-2], *scales.shape[-2:]).view(torch.float8_e8m0fnu)
    return StoredWeight(values=values, scales=scales, format=weight_format)


def make_experts(
    hidden: int,
    width: int,
    weight_format: WeightFormat,
    *,
    num: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> ExpertWeights:
    lead = () if num is None else (num,)
    shapes = {"w1": (width, hidden), "w2": (hidden, width), "w3": (width, hidden)}
    made = {name: make_weight((*lead, *shape), weight_format, dtype) for name, shape in shapes.items()}
    return ExpertWeights(w1=made["w1"], w2=made["w2"], w3=made["w3"])


def random_routing(num_tokens: int, k: int, num_experts: int) -> Routing:
    ids = torch.stack([torch.randperm(num_experts)[:k] for _ in range(num_tokens)]).int()
    return Routing(ids_Tk=ids, weights_Tk=torch.rand(num_tokens, k) + 0.2)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def test_reference_is_the_mixture_of_the_model() -> None:
    routed, shared = (make_experts(32, 24, WeightFormat.PLAIN, num=num) for num in (4, None))
    routing, x = random_routing(3, 2, 4), torch.randn(3, 32)
    parts = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    for token in range(3):
        for place in range(3):
            last = place == 2
            expert, weight = (0, 1.0) if last else (int(routing.ids_Tk[token, place]), routing.weights_Tk[token, place])
            w1, w2, w3 = (
                each.values if last else each.values[expert]
                for each in ((shared.w1, shared.w2, shared.w3) if last else (routed.w1, routed.w2, routed.w3))
            )
            gate, up = (w1 @ x[token]).clamp(max=LIMIT), (w3 @ x[token]).clamp(-LIMIT, LIMIT)
            expected = w2 @ (gate * gate.sigmoid() * up * weight)
            torch.testing.assert_close(parts[place, token], expected)


@pytest.mark.usefixtures("nan_empty")
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("num_tokens", "limit"), [(1, LIMIT), (5, 0.0)])
def test_kernel_agrees_with_the_reference(weight_format: WeightFormat, num_tokens: int, limit: float) -> None:
    routed, shared = (make_experts(96, 64, weight_format, num=num) for num in (5, None))
    routing, x = random_routing(num_tokens, 2, 5), torch.randn(num_tokens, 96)
    expected = experts(x, routing, routed, shared, limit=limit, kernels=Kernels.REFERENCE)
    got = experts(x, routing, routed, shared, limit=limit, kernels=Kernels.TRITON)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("nan_empty")
def test_sizes_that_no_tile_divides_and_rows_that_are_not_adjacent() -> None:
    routed, shared = (make_experts(40, 37, WeightFormat.PLAIN, num=num) for num in (3, None))
    wide, routing = torch.randn(4, 50), random_routing(4, 2, 3)
    expected = experts(wide[:, 5:45], routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    got = experts(wide[:, 5:45], routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("nan_empty")
@pytest.mark.parametrize("num_tokens", [19, 70])
def test_an_expert_with_several_blocks_of_tokens(num_tokens: int) -> None:
    routed, shared = (make_experts(32, 32, WeightFormat.PLAIN, num=num) for num in (6, None))
    # Every token goes to expert 4 and one more; experts 0 and 5 get none.
    ids = torch.stack((torch.full((num_tokens,), 4), torch.randint(1, 4, (num_tokens,))), dim=1).int()
    routing, x = Routing(ids_Tk=ids, weights_Tk=torch.rand(num_tokens, 2)), torch.randn(num_tokens, 32)
    expected = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    got = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_shared_expert_may_be_stored_in_another_format() -> None:
    routed, shared = make_experts(64, 32, WeightFormat.FP4, num=3), make_experts(64, 32, WeightFormat.FP8)
    routing, x = random_routing(3, 2, 3), torch.randn(3, 64)
    expected = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    got = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    routed, shared = (make_experts(64, 48, WeightFormat.PLAIN, num=num) for num in (4, None))
    routing, x = random_routing(9, 2, 4), torch.randn(9, 64)
    together = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    one = Routing(ids_Tk=routing.ids_Tk[4:5], weights_Tk=routing.weights_Tk[4:5])
    alone = experts(x[4:5], one, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    assert torch.equal(together[:, 4:5], alone)


def test_no_tokens_give_no_rows() -> None:
    routed, shared = (make_experts(32, 32, WeightFormat.PLAIN, num=num) for num in (2, None))
    nobody = Routing(ids_Tk=torch.empty(0, 2, dtype=torch.int32), weights_Tk=torch.empty(0, 2))
    got = experts(torch.empty(0, 32), nobody, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    assert got.shape == (3, 0, 32)


def packed(weights: ExpertWeights) -> ExpertWeights:
    return ExpertWeights(w1=weights.w1.pack(), w2=weights.w2.pack(), w3=weights.w3.pack())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("weight_format", "shared_format"),
    [*((each, each) for each in FORMATS), (WeightFormat.FP4, WeightFormat.FP8), (WeightFormat.FP4, WeightFormat.PLAIN)],
)
def test_kernel_agrees_with_the_reference_in_bf16_and_keeps_bits(
    weight_format: WeightFormat, shared_format: WeightFormat
) -> None:
    routed = packed(make_experts(512, 256, weight_format, num=16, dtype=torch.bfloat16))
    shared = packed(make_experts(512, 256, shared_format, dtype=torch.bfloat16))
    routing = random_routing(64, 6, 16)
    x = torch.randn(64, 512, dtype=torch.bfloat16)
    expected = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    all_tokens = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    # Activations differ by a rounding to bf16 here and there.
    assert relative_error(all_tokens, expected) < 2e-3
    for num_tokens in (1, 4, 16):
        few = Routing(ids_Tk=routing.ids_Tk[:num_tokens], weights_Tk=routing.weights_Tk[:num_tokens])
        got = experts(x[:num_tokens], few, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
        assert torch.equal(got, all_tokens[:, :num_tokens])


@pytest.mark.gpu
def test_many_tokens_in_bf16() -> None:
    routed, shared = (make_experts(512, 256, WeightFormat.PLAIN, num=num, dtype=torch.bfloat16) for num in (16, None))
    routing = random_routing(512, 6, 16)
    x = torch.randn(512, 512, dtype=torch.bfloat16)
    expected = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.REFERENCE)
    got = experts(x, routing, routed, shared, limit=LIMIT, kernels=Kernels.TRITON)
    assert relative_error(got, expected) < 2e-3
