"""Routing of a pass: the reference is the router's maths, the kernel chooses the same experts."""

import pytest
import torch
import torch.nn.functional as F

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.moe import Router
from backends.deepseek_v4.ops.route import Routing, route

ALL = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
VOCABULARY = 40


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def separated_logits(num_tokens: int, num_experts: int) -> torch.Tensor:
    """[T, E] logits from -12 to 30 in random order, so far apart that rounding cannot reorder their scores."""
    steps = torch.linspace(-12.0, 30.0, num_experts)
    return torch.stack([steps[torch.randperm(num_experts)] for _ in range(num_tokens)])


def separated_bias(num_experts: int) -> torch.Tensor:
    """Biases that divide the experts into groups whose scores lie apart."""
    return 10.0 * torch.randint(0, 3, (num_experts,))


def parts_of(logits_TE: torch.Tensor, num_parts: int) -> torch.Tensor:
    """Random parts [P, T, E] whose sum is about the logits; a strided view."""
    noise = torch.randn(num_parts, *logits_TE.shape)
    noise[-1] = logits_TE - noise[:-1].sum(0)
    wide = torch.full((num_parts, logits_TE.shape[0] + 1, logits_TE.shape[1] + 5), float("nan"))
    wide[:, 1:, 2:-3] = noise
    return wide[:, 1:, 2:-3]


def table_of(num_experts: int, k: int) -> torch.Tensor:
    return torch.stack([torch.randperm(num_experts)[:k] for _ in range(VOCABULARY)])


def on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides on a device."""
    storage = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return storage.copy_(tensor)


def assert_routes(got: Routing, want: Routing) -> None:
    assert got.ids_Tk.dtype == torch.int32 and got.weights_Tk.dtype == torch.float32
    assert got.ids_Tk.tolist() == want.ids_Tk.tolist()
    torch.testing.assert_close(got.weights_Tk.cpu(), want.weights_Tk.cpu(), rtol=1e-5, atol=1e-9)


@ALL
@pytest.mark.parametrize(
    ("num_experts", "k", "num_parts", "normalise", "factor"),
    [(384, 8, 3, True, 2.5), (64, 6, 1, True, 1.5), (13, 3, 2, False, 1.0), (8, 8, 1, True, 1.0), (5, 1, 1, True, 2.0)],
)
def test_choice_equals_the_router_module(
    nan_empty, tiny, kernels, device, num_experts, k, num_parts, normalise, factor
):
    config = tiny(
        n_routed_experts=num_experts,
        num_experts_per_tok=k,
        norm_topk_prob=normalise,
        routed_scaling_factor=factor,
        hidden_size=num_experts,
    )
    logits = separated_logits(5, num_experts)
    parts = parts_of(logits, num_parts)
    tokens = torch.randint(0, config.vocab_size, (5,))
    for layer in (0, config.num_hidden_layers - 1):
        router = Router(config, layer)
        # The router's own product with the identity gives the logits that the parts add up to.
        router.weight.data = torch.eye(num_experts)
        if router.is_hash:
            router.tid2eid = torch.stack([torch.randperm(num_experts)[:k] for _ in range(config.vocab_size)])
        else:
            router.bias.data = separated_bias(num_experts)
        ids, weights = router(parts.sum(0), tokens)
        got = route(
            on(device, parts),
            tokens.to(device),
            bias_E=None if router.is_hash else router.bias.data.to(device),
            expert_table_Vk=router.tid2eid.to(device) if router.is_hash else None,
            k=k,
            normalise=normalise,
            factor=factor,
            kernels=kernels,
        )
        assert_routes(got, Routing(ids_Tk=ids.int(), weights_Tk=weights.detach()))


@ALL
def test_equal_scores_take_the_lowest_id_and_the_bias_only_selects(kernels, device):
    logits = torch.zeros(1, 2, 70)
    logits[0, 1, 66] = 3.0
    bias = torch.zeros(70)
    bias[5] = 9.0
    got = route(
        logits.to(device),
        torch.zeros(2, dtype=torch.int64, device=device),
        bias_E=bias.to(device),
        expert_table_Vk=None,
        k=4,
        normalise=False,
        factor=1.0,
        kernels=kernels,
    )
    assert got.ids_Tk.tolist() == [[5, 0, 1, 2], [5, 66, 0, 1]]
    base, best = F.softplus(torch.tensor([0.0, 3.0])).sqrt().tolist()
    want = torch.tensor([[base] * 4, [base, best, base, base]])
    torch.testing.assert_close(got.weights_Tk.cpu(), want, rtol=1e-6, atol=0)


@ALL
def test_scores_are_exact_from_the_smallest_to_the_largest_logits(kernels, device):
    """Where ``1 + exp(x)`` rounds to 1, where softplus turns into the identity, and where it underflows."""
    logits = torch.tensor([-200.0, -87.0, -40.0, -18.0, -10.0, -1.0, 0.0, 1e-3, 5.0, 19.99, 20.01, 88.0, 3000.0])
    num = len(logits)
    got = route(
        logits.view(1, 1, num).to(device),
        torch.zeros(1, dtype=torch.int64, device=device),
        bias_E=None,
        expert_table_Vk=torch.arange(num, device=device).unsqueeze(0),
        k=num,
        normalise=False,
        factor=1.0,
        kernels=kernels,
    )
    want = torch.logaddexp(logits.double(), torch.zeros(1, dtype=torch.float64)).sqrt()
    torch.testing.assert_close(got.weights_Tk[0].cpu().double(), want, rtol=5e-6, atol=2e-19)


@ALL
def test_padding_may_have_any_token_and_any_logits(kernels, device):
    parts = torch.randn(1, 3, 9)
    tokens = torch.tensor([-1, 4, VOCABULARY + 3])
    table = table_of(9, 2)
    got = route(
        parts.to(device), tokens.to(device), bias_E=None, expert_table_Vk=table.to(device),
        k=2, normalise=True, factor=1.0, kernels=kernels,
    )  # fmt: skip
    assert got.ids_Tk.tolist() == [table[0].tolist(), table[4].tolist(), table[-1].tolist()]
    parts[0, 1] = float("nan")
    got = route(
        parts.to(device), tokens.to(device), bias_E=torch.zeros(9, device=device), expert_table_Vk=None,
        k=2, normalise=True, factor=1.0, kernels=kernels,
    )  # fmt: skip
    assert ((got.ids_Tk >= 0) & (got.ids_Tk < 9)).all()


def test_kernel_gives_a_token_the_same_result_alone_and_in_a_pass(device):
    parts, bias = parts_of(torch.randn(6, 11), 2).to(device), torch.randn(11, device=device)
    tokens = torch.zeros(6, dtype=torch.int64, device=device)

    def run(rows: slice) -> Routing:
        return route(
            parts[:, rows], tokens[rows], bias_E=bias, expert_table_Vk=None,
            k=3, normalise=True, factor=1.5, kernels=Kernels.TRITON,
        )  # fmt: skip

    whole = run(slice(0, 6))
    for t in range(6):
        alone = run(slice(t, t + 1))
        assert alone.ids_Tk[0].equal(whole.ids_Tk[t])
        assert alone.weights_Tk[0].equal(whole.weights_Tk[t])
    assert run(slice(0, 0)).ids_Tk.shape == (0, 3)


def test_reference_reads_nothing_from_the_device():
    parts = torch.empty(2, 5, 9, device="meta")
    tokens = torch.empty(5, dtype=torch.int64, device="meta")
    bias, table = torch.empty(9, device="meta"), torch.empty(20, 3, dtype=torch.int64, device="meta")
    options = {"k": 3, "normalise": True, "factor": 1.0, "kernels": Kernels.REFERENCE}
    assert route(parts, tokens, bias_E=bias, expert_table_Vk=None, **options).ids_Tk.shape == (5, 3)
    assert route(parts, tokens, bias_E=None, expert_table_Vk=table, **options).weights_Tk.shape == (5, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 512])
def test_captured_kernel_follows_logits_and_tokens(num_tokens):
    device = torch.device("cuda")
    parts = torch.zeros(4, num_tokens, 256, device=device)
    tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    bias, table = separated_bias(256).to(device), table_of(256, 6).to(device)
    options = {"k": 6, "normalise": True, "factor": 2.5}

    def run(kernels: Kernels) -> tuple[Routing, Routing]:
        return (
            route(parts, tokens, bias_E=bias, expert_table_Vk=None, kernels=kernels, **options),
            route(parts, tokens, bias_E=None, expert_table_Vk=table, kernels=kernels, **options),
        )

    run(Kernels.TRITON)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(Kernels.TRITON)
    parts.copy_(parts_of(separated_logits(num_tokens, 256), 4))
    tokens.copy_(torch.randint(0, VOCABULARY, (num_tokens,)))
    graph.replay()
    for one, other in zip(got, run(Kernels.REFERENCE), strict=True):
        assert_routes(one, other)
