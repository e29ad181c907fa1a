"""sparse_attention: the softmax with a sink over gathered rows, in torch, in Triton and through FlashMLA."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.pass_values import SlotList
from backends.deepseek_v4.rows.choose import kv_rows
from specdec.errors import UnsupportedError

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def key_list(rows, lens, width, *, device=CPU, num_pages=8, hole=False) -> KeyList:
    """Random rows in shuffled slots; rows that no slot names are NaN where the format can hold it."""
    capacity = num_pages * rows.rows_per_page
    buffer = rows.allocate(num_pages, device)
    everything = torch.arange(capacity, device=device)
    rows.put(buffer, everything, torch.full((capacity, rows.width), float("nan"), device=device))
    slots = torch.full((len(lens), width), -1, dtype=torch.int32)
    for t, length in enumerate(lens):
        slots[t, :length] = torch.randperm(capacity)[:length].to(torch.int32)
        if hole and length > 2:
            slots[t, 1] = -1
    used = slots[slots >= 0].to(torch.int64).unique().to(device)
    if len(used):
        rows.put(buffer, used, torch.randn(len(used), rows.width, device=device))
    lens_T = torch.tensor(lens, dtype=torch.int32, device=device)
    return KeyList(buffer=buffer, rows=rows, slots=SlotList(slots_TK=slots.to(device), lens_T=lens_T))


def inputs(num_tokens, num_heads, head_dim, rope_dim, *, device=CPU, dtype=torch.float32):
    """Queries as a strided slice, sinks and angles."""
    q_THD = torch.randn(num_tokens, num_heads + 1, head_dim + 8, device=device).to(dtype)[:, 1:, :head_dim]
    radians = torch.rand(num_tokens, rope_dim // 2, device=device) * 6
    angles_T2R = torch.stack([radians.cos(), radians.sin()], dim=1)
    return q_THD, torch.randn(num_heads, device=device), angles_T2R


def oracle(q_THD, lists, sinks_H, scale, angles_T2R) -> torch.Tensor:
    """Token by token and head by head in float64."""
    num_tokens, num_heads, head_dim = q_THD.shape
    rope = 2 * angles_T2R.shape[2]
    out = torch.zeros(num_tokens, num_heads, head_dim, dtype=torch.float64)
    for t in range(num_tokens):
        slots = [keys.slots.slots_TK[t, : keys.slots.lens_T[t]] for keys in lists]
        found = [keys.rows.take(keys.buffer, s[s >= 0]).double() for keys, s in zip(lists, slots, strict=True)]
        keys_ND = torch.cat(found)
        cos, sin = angles_T2R[t].double()
        for h in range(num_heads):
            weights = (keys_ND @ q_THD[t, h].double() * scale).exp()
            o = weights @ keys_ND / (weights.sum() + sinks_H[h].double().exp())
            even, odd = o[-rope::2].clone(), o[-rope + 1 :: 2].clone()
            o[-rope::2], o[-rope + 1 :: 2] = even * cos + odd * sin, odd * cos - even * sin
            out[t, h] = o
    return out.flatten(1)


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, pytest.param(Kernels.TRITON, marks=pytest.mark.interpreter)])
@pytest.mark.parametrize("with_extra", [False, True])
@pytest.mark.usefixtures("nan_empty")
def test_equals_the_definition(kernels, with_extra):
    """Lists of every length up to a full one, a gap within a list, a token without keys, padded heads and dims."""
    q, sinks, angles = inputs(4, 3, 20, 6)
    rows = kv_rows("fp32", head_dim=20, rope_dim=6, rows_per_page=16)
    window = key_list(rows, [0, 1, 64, 20], 64, hole=True)
    small = kv_rows("fp32", head_dim=20, rope_dim=6, rows_per_page=2)
    extra = key_list(small, [0, 70, 3, 0], 128, num_pages=40) if with_extra else None
    got = sparse_attention(q, window, extra, sinks, scale=0.3, angles_T2R=angles, kernels=kernels)
    lists = [window, extra] if with_extra else [window]
    assert got.dtype == q.dtype and (got[0] == 0).all()
    torch.testing.assert_close(got.double(), oracle(q, lists, sinks, 0.3, angles), atol=2e-5, rtol=2e-5)


@pytest.mark.interpreter
@pytest.mark.usefixtures("nan_empty")
def test_fp8_rows_are_decoded_like_the_format_does():
    q, sinks, angles = inputs(2, 2, 80, 16)
    rows = kv_rows("fp8", head_dim=80, rope_dim=16, rows_per_page=4)
    extra_rows = kv_rows("fp8", head_dim=80, rope_dim=16, rows_per_page=2)
    window, extra = key_list(rows, [9, 1], 64), key_list(extra_rows, [3, 5], 64)
    args = {"scale": 0.2, "angles_T2R": angles}
    got = sparse_attention(q, window, extra, sinks, **args, kernels=Kernels.TRITON)
    want = sparse_attention(q, window, extra, sinks, **args, kernels=Kernels.REFERENCE)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, pytest.param(Kernels.TRITON, marks=pytest.mark.interpreter)])
def test_neither_key_nor_sink_gives_zeros_and_no_token_gives_nothing(kernels):
    q, sinks, angles = inputs(1, 2, 32, 8)
    window = key_list(kv_rows("fp32", head_dim=32, rope_dim=8, rows_per_page=16), [0], 64)
    args = {"scale": 1.0, "kernels": kernels}
    none = sparse_attention(q, window, None, torch.full_like(sinks, -torch.inf), angles_T2R=angles, **args)
    assert (none == 0).all()
    empty = KeyList(
        buffer=window.buffer,
        rows=window.rows,
        slots=SlotList(slots_TK=window.slots.slots_TK[:0], lens_T=window.slots.lens_T[:0]),
    )
    assert sparse_attention(q[:0], empty, None, sinks, angles_T2R=angles[:0], **args).shape == (0, 64)


def test_flash_mla_refuses_plain_rows_and_other_devices():
    q, sinks, angles = inputs(1, 2, 512, 64, dtype=torch.bfloat16)
    args = {"scale": 1.0, "angles_T2R": angles, "kernels": Kernels.FLASH_MLA}
    window = key_list(kv_rows("bf16", head_dim=512, rope_dim=64, rows_per_page=16), [1], 64)
    with pytest.raises(UnsupportedError, match="compute capability|fp8 rows only"):
        sparse_attention(q, window, None, sinks, **args)


# On a GPU.


def gpu_case(cache_dtype, *, num_tokens=6, num_heads=64, extra_rows=64, dtype=torch.bfloat16):
    q, sinks, angles = inputs(num_tokens, num_heads, 512, 64, device=CUDA, dtype=dtype)
    windows = [0, 1, 64, 100, 128, 128][:num_tokens]
    extras = [0, 0, 3, 512, 130, 511][:num_tokens]
    window = key_list(kv_rows(cache_dtype, head_dim=512, rope_dim=64, rows_per_page=64), windows, 128, device=CUDA)
    rows = kv_rows(cache_dtype, head_dim=512, rope_dim=64, rows_per_page=extra_rows)
    extra = key_list(rows, extras, 512, device=CUDA, num_pages=640 // extra_rows)
    return q, window, extra, sinks, {"scale": 512**-0.5, "angles_T2R": angles}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def expected(q, window, extra, sinks, args) -> torch.Tensor:
    return sparse_attention(q.float(), window, extra, sinks, **args, kernels=Kernels.REFERENCE)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cache_dtype", "dtype", "heads", "extra_rows", "tolerance"),
    [
        ("fp8", torch.bfloat16, 64, 64, 4e-3),
        ("fp8", torch.bfloat16, 4, 2, 4e-3),
        ("bf16", torch.bfloat16, 64, 64, 4e-3),
        ("fp32", torch.float32, 4, 64, 2e-5),
    ],
)
def test_gpu_kernel_equals_the_reference(cache_dtype, dtype, heads, extra_rows, tolerance):
    q, window, extra, sinks, args = gpu_case(cache_dtype, num_heads=heads, extra_rows=extra_rows, dtype=dtype)
    got = sparse_attention(q, window, extra, sinks, **args, kernels=Kernels.TRITON)
    assert (got[0] == 0).all()
    assert relative_error(got, expected(q, window, extra, sinks, args)) < tolerance


@pytest.mark.gpu
def test_gpu_a_token_alone_is_bit_equal_to_the_same_token_in_a_pass():
    q, window, extra, sinks, args = gpu_case("fp8")
    together = sparse_attention(q, window, extra, sinks, **args, kernels=Kernels.TRITON)
    for t in range(q.shape[0]):
        one = slice(t, t + 1)
        lists = [
            KeyList(
                buffer=keys.buffer,
                rows=keys.rows,
                slots=SlotList(slots_TK=keys.slots.slots_TK[one], lens_T=keys.slots.lens_T[one]),
            )
            for keys in (window, extra)
        ]
        angles = args["angles_T2R"][one]
        alone = sparse_attention(q[one], *lists, sinks, scale=args["scale"], angles_T2R=angles, kernels=Kernels.TRITON)
        assert torch.equal(alone[0], together[t])


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [4, 64])
def test_gpu_flash_mla_equals_the_reference_and_replays(heads):
    pytest.importorskip("flash_mla")
    q, window, extra, sinks, args = gpu_case("fp8", num_heads=heads)
    for more in (None, extra):
        got = sparse_attention(q, window, more, sinks, **args, kernels=Kernels.FLASH_MLA)
        assert relative_error(got, expected(q, window, more, sinks, args)) < 4e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = sparse_attention(q, window, extra, sinks, **args, kernels=Kernels.FLASH_MLA)
    window.slots.lens_T.copy_(torch.tensor([1, 0, 32, 128, 7, 64]).clamp(max=window.slots.lens_T.cpu()))
    extra.slots.lens_T.copy_(torch.tensor([0, 0, 2, 300, 130, 64]))
    graph.replay()
    assert relative_error(got, expected(q, window, extra, sinks, args)) < 4e-3
