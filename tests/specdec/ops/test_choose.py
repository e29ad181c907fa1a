"""choose: words of noise bit for bit, the reference's token up to near ties, edges of logits."""

import pytest
import torch

from specdec.noise import Salt, VocabularyNoise, row_keys
from specdec.ops.choose import choose, reference

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from specdec.ops.choose import kernel  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOWEST = float("-inf")
# Between scores of float32 and float64.
NEAR = 1e-5


@triton.jit
def _words(stream_ptr, position_ptr, words_ptr, out_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    key = kernel.row_key(tl.load(stream_ptr), tl.load(position_ptr))
    tl.store(out_ptr + places, kernel.noise_words(key, tl.load(words_ptr + places)))


def mixed(keys: torch.Tensor, words_V: torch.Tensor) -> torch.Tensor:
    """The integers behind the exponentials of specdec.noise, in its own words."""
    x = keys.unsqueeze(-1) ^ words_V
    x = x * kernel.MIX_A.value
    x = x ^ (x >> 32)
    return (x * kernel.MIX_B.value) | kernel.SIGN.value


@pytest.mark.parametrize("stream", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("position", [0, 1, 1000003])
def test_noise_words_are_those_of_torch_bit_for_bit(stream: int, position: int) -> None:
    noise = VocabularyNoise(64, device=DEVICE)
    streams, positions = torch.tensor([stream], device=DEVICE), torch.tensor([position], device=DEVICE)
    found_V = torch.empty(64, dtype=torch.int64, device=DEVICE)
    _words[(1,)](streams, positions, noise.words_V, found_V, BLOCK=64)
    keys = row_keys(streams, positions, Salt.TARGET)
    expected_V = mixed(keys, noise.words_V)[0]
    assert found_V.equal(expected_V)
    exact_V = expected_V.float().mul_(kernel.TO_UNIT.value).log1p_().neg_()
    assert exact_V.equal(noise.exponentials(keys)[0])


def inputs(num_reqs: int, width: int, vocab_size: int, dtype: torch.dtype = torch.float32) -> dict:
    generator = torch.Generator().manual_seed(num_reqs + vocab_size)
    logits_BNV = 3 * torch.randn(num_reqs, width, vocab_size + 3, generator=generator)
    greedy_B = torch.rand(num_reqs, generator=generator) < 0.3
    inverse_B = torch.where(greedy_B, 1.0, torch.rand(num_reqs, generator=generator) + 0.5)
    return {
        "logits_BNV": logits_BNV.to(dtype)[:, :, :vocab_size].to(DEVICE),
        "positions_B": torch.arange(num_reqs, device=DEVICE) * 17,
        "streams_B": torch.randint(-(2**62), 2**62, (num_reqs,), generator=generator).to(DEVICE),
        "inverse_temperature_B": inverse_B.to(DEVICE),
        "greedy_B": greedy_B.to(DEVICE),
        "noise": VocabularyNoise(vocab_size, device=DEVICE),
    }


def margins(given: dict, ids_BN: torch.Tensor) -> torch.Tensor:
    """By how much the best id of each row beats ``ids_BN``, in float64."""
    logits_BNV = given["logits_BNV"].double().nan_to_num(nan=LOWEST, posinf=1e30, neginf=LOWEST)
    scores_BNV = logits_BNV * given["inverse_temperature_B"].double().view(-1, 1, 1)
    offsets_N = torch.arange(ids_BN.shape[1], device=DEVICE)
    keys_BN = row_keys(given["streams_B"][:, None], given["positions_B"][:, None] + offsets_N, Salt.TARGET)
    noise_BNV = given["noise"].exponentials(keys_BN).double().log()
    scores_BNV = torch.where(given["greedy_B"].view(-1, 1, 1), scores_BNV, scores_BNV - noise_BNV)
    return scores_BNV.amax(dim=2) - scores_BNV.gather(2, ids_BN.unsqueeze(2)).squeeze(2)


@pytest.mark.parametrize(("num_reqs", "width", "vocab_size"), [(1, 1, 7), (1, 3, 2048), (2, 2, 2049), (3, 1, 5003)])
def test_kernel_gives_the_best_id(nan_empty, num_reqs: int, width: int, vocab_size: int) -> None:
    given = inputs(num_reqs, width, vocab_size)
    found_BN = kernel.choose(**given)
    expected_BN = reference.choose(**given)
    assert (found_BN.dtype, found_BN.shape) == (torch.int64, (num_reqs, width))
    assert margins(given, found_BN).max() < NEAR and margins(given, expected_BN).max() < NEAR
    assert (found_BN == expected_BN).all()


def test_kernel_gives_a_row_the_same_token_alone() -> None:
    given = inputs(3, 2, 3001)
    together_BN = kernel.choose(**given)
    for b in range(3):
        own = {n: x if n == "noise" else x[b : b + 1] for n, x in given.items()}
        assert kernel.choose(**own).equal(together_BN[b : b + 1])
        second = {**own, "logits_BNV": own["logits_BNV"][:, 1:], "positions_B": own["positions_B"] + 1}
        assert kernel.choose(**second).equal(together_BN[b : b + 1, 1:])


@pytest.mark.parametrize("is_greedy", [True, False])
def test_edges_of_logits(is_greedy: bool) -> None:
    nan = float("nan")
    logits_BNV = torch.tensor(
        [
            [[nan, 1.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, nan]],
            [[LOWEST] * 9],
            [[nan, LOWEST, -50.0, LOWEST, nan, nan, nan, nan, nan]],
            [[0.0, float("inf"), 1.0, float("inf"), 0.0, 0.0, 0.0, 0.0, 0.0]],
        ],
        device=DEVICE,
    )
    given = {
        **inputs(4, 1, 9),
        "logits_BNV": logits_BNV,
        "inverse_temperature_B": torch.ones(4, device=DEVICE),
        "greedy_B": torch.full((4,), is_greedy, device=DEVICE),
    }
    found = kernel.choose(**given).flatten().tolist()
    assert found[:3] == reference.choose(**given).flatten().tolist()[:3]
    # Noise is lost beside infinite logits, so the kernel takes the lowest of them.
    assert found[1:3] == [0, 2] and found[3] == 1
    assert found[0] == 2 if is_greedy else found[0] not in (0, 8)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("num_reqs", "width", "vocab_size", "dtype"), [(1, 4, 129280, torch.float32), (16, 4, 32003, torch.bfloat16)]
)
def test_kernel_on_large_vocabularies(num_reqs: int, width: int, vocab_size: int, dtype: torch.dtype) -> None:
    given = inputs(num_reqs, width, vocab_size, dtype)
    found_BN = choose(**given)
    assert margins(given, found_BN).max() < NEAR
    assert margins(given, reference.choose(**given)).max() < 10 * NEAR
