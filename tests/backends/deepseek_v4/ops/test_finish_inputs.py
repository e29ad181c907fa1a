"""Projected inputs finish as the attention module does it, and land in the caches where the pass puts them."""

import pytest
import torch

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, AttentionKind, CacheLayout, state_group
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.finish_inputs import CompressorInputs, LayerInputs, finish_inputs
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON], ids=lambda k: k.value)
KINDS = pytest.mark.parametrize("kind", list(AttentionKind), ids=lambda k: k.name)
LAYER_OF_TINY = {AttentionKind.SWA: 0, AttentionKind.CSA: 2, AttentionKind.HCA: 3}


def make_pool(kind: AttentionKind, **sizes) -> CachePool:
    layout = CacheLayout(compress_ratios=(kind.ratio,), sliding_window=32, **sizes)
    return CachePool(layout, {spec.group_id: 12 for spec in layout.group_specs()}, device=DEVICE, poison=True)


def make_indices(kind: AttentionKind, pool: CachePool, positions: list[int]) -> PassIndices:
    """Every token at a random slot of every group; padding at none."""
    positions_T = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    pages = {SWA_GROUP: pool.swa_rows.rows_per_page}
    if kind.compresses:
        pages[state_group(kind)] = kind.state_rows_per_page
    if kind is AttentionKind.CSA:
        pages[INDEX_STATE_GROUP] = kind.state_rows_per_page
    slots = {g: n + torch.randperm(11 * n, device=DEVICE)[: len(positions)].to(torch.int32) for g, n in pages.items()}
    none = SlotList(slots_TK=positions_T.unsqueeze(1), lens_T=positions_T)
    return PassIndices(
        positions_T=positions_T,
        reqs_T=torch.zeros_like(positions_T),
        write_slots={g: torch.where(positions_T >= 0, s, -1) for g, s in slots.items()},
        entry_slots={},
        visible={},
        window=none,
        hca=None,
    )


def layer_inputs(attention: Attention) -> LayerInputs:
    def shares(compressor):
        return CompressorInputs(ratio=compressor.ratio, channels=compressor.channels, ape=compressor.ape.detach())

    indexer = attention.indexer
    return LayerInputs(
        q_lora=attention.wq_a.out_features,
        head_dim=attention.head_dim,
        q_norm=attention.q_norm.weight.detach(),
        kv_norm=attention.kv_norm.weight.detach(),
        eps=attention.eps,
        compressor=None if attention.compressor is None else shares(attention.compressor),
        index=None if indexer is None else shares(indexer.compressor),
        index_heads=0 if indexer is None else indexer.num_heads,
        index_scale=0.0 if indexer is None else indexer.scale,
    )


def projection(attention: Attention) -> torch.Tensor:
    weights = [attention.wq_a.weight, attention.wkv.weight]
    if attention.compressor is not None:
        weights += [attention.compressor.wkv.weight, attention.compressor.wgate.weight]
    if attention.indexer is not None:
        inner = attention.indexer
        weights += [inner.compressor.wkv.weight, inner.compressor.wgate.weight, inner.weights_proj.weight]
    return torch.cat([weight.detach() for weight in weights])


def angles(num_tokens: int, pairs: int) -> torch.Tensor:
    turns = 7 * torch.randn(num_tokens, pairs)
    return torch.stack((turns.cos(), turns.sin()), dim=1).to(DEVICE)


def buffers(kind: AttentionKind, pool: CachePool) -> list[torch.Tensor]:
    """What the operator writes, without page 0."""
    found = [pool.swa(0)]
    if kind.compresses:
        found.append(pool.state(0))
    if kind is AttentionKind.CSA:
        found.append(pool.index_state(0))
    return [buffer[1:] for buffer in found]


@BOTH
@KINDS
def test_latent_weights_and_caches_equal_the_modules(tiny, randomise, nan_empty, kernels, kind):
    config = tiny()
    attention = Attention(config, LAYER_OF_TINY[kind])
    randomise(attention)
    attention = attention.to(DEVICE)
    sizes = {"head_dim": 32, "rope_dim": 16, "index_head_dim": 16, "cache_dtype": "fp32", "indexer_dtype": "plain"}
    pool, want = make_pool(kind, **sizes), make_pool(kind, **sizes)
    positions = [5, -1, 130, 7, 8]
    indices, angles_T2R = make_indices(kind, pool, positions), angles(len(positions), 8)
    x_TD = torch.randn(len(positions), config.hidden_size, device=DEVICE)
    halves = zip(x_TD.chunk(2, dim=1), projection(attention).chunk(2, dim=1), strict=True)
    parts_PTO = torch.stack([x @ weight.t() for x, weight in halves])
    got = finish_inputs(
        parts_PTO, indices, angles_T2R, layer_inputs(attention), pool, 0, dtype=torch.float32, kernels=kernels
    )
    real = indices.positions_T >= 0
    slots = {group: each[real].long() for group, each in indices.write_slots.items()}
    with torch.no_grad():
        _, keys, latent_TL = attention.project(x_TD, Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1]))
        want.swa_rows.put(want.swa(0), slots[SWA_GROUP], keys[real])
        if kind.compresses:
            states = attention.compressor.state_rows(x_TD[real], indices.positions_T[real].long())
            want.state_rows(0).put(want.state(0), slots[state_group(kind)], states)
        if kind is AttentionKind.CSA:
            states = attention.indexer.compressor.state_rows(x_TD[real], indices.positions_T[real].long())
            want.index_state_rows(0).put(want.index_state(0), slots[INDEX_STATE_GROUP], states)
            torch.testing.assert_close(got[1], attention.indexer.weights(x_TD), rtol=1e-4, atol=1e-5)
        else:
            assert got[1] is None
    torch.testing.assert_close(got[0], latent_TL, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(buffers(kind, pool), buffers(kind, want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_padding_leaves_every_byte_of_the_caches_alone(nan_empty):
    sizes = {"head_dim": 32, "rope_dim": 16, "index_head_dim": 16, "cache_dtype": "fp32", "indexer_dtype": "plain"}
    pool = make_pool(AttentionKind.CSA, **sizes)
    inputs = random_inputs(AttentionKind.CSA, q_lora=8, head_dim=32, index_dim=16, heads=3)
    indices = make_indices(AttentionKind.CSA, pool, [-1, -1])
    before = [buffer.clone() for buffer in (pool.swa(0), pool.state(0), pool.index_state(0))]
    parts_PTO = torch.randn(1, 2, inputs.num_columns, device=DEVICE)
    latent_TL, weights_TJ = finish_inputs(
        parts_PTO, indices, angles(2, 8), inputs, pool, 0, dtype=torch.float32, kernels=Kernels.TRITON
    )
    assert latent_TL.isfinite().all() and weights_TJ.isfinite().all()
    for old, new in zip(before, (pool.swa(0), pool.state(0), pool.index_state(0)), strict=True):
        assert torch.equal(old.view(torch.int32), new.view(torch.int32))


def random_inputs(
    kind: AttentionKind, *, q_lora: int, head_dim: int, index_dim: int, heads: int, eps: float = 1e-6
) -> LayerInputs:
    def shares(channels):
        ape = torch.randn(kind.ratio, channels, device=DEVICE)
        return CompressorInputs(ratio=kind.ratio, channels=channels, ape=ape)

    overlaps = kind is AttentionKind.CSA
    return LayerInputs(
        q_lora=q_lora,
        head_dim=head_dim,
        q_norm=torch.randn(q_lora, device=DEVICE),
        kv_norm=torch.randn(head_dim, device=DEVICE),
        eps=eps,
        compressor=shares((2 if overlaps else 1) * head_dim) if kind.compresses else None,
        index=shares(2 * index_dim) if overlaps else None,
        index_heads=heads if overlaps else 0,
        index_scale=0.125 if overlaps else 0.0,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", ["fp8", "bf16"])
def test_real_widths_in_bf16_store_the_reference_bytes(cache_dtype):
    """Keys of magnitude one have an exact norm, so that every later rounding must agree."""
    kind = AttentionKind.CSA
    pool, want = make_pool(kind, cache_dtype=cache_dtype), make_pool(kind, cache_dtype=cache_dtype)
    inputs = random_inputs(kind, q_lora=1024, head_dim=512, index_dim=128, heads=64, eps=0.0)
    positions = [*range(100, 115), -1]
    indices, angles_T2R = make_indices(kind, pool, positions), angles(len(positions), 32)
    parts_PTO = torch.randn(4, len(positions), inputs.num_columns, device=DEVICE)
    parts_PTO[:, :, 1024:1536] = 0.0
    parts_PTO[2, :, 1024:1536] = torch.randn(len(positions), 512, device=DEVICE).sign()
    got = finish_inputs(parts_PTO, indices, angles_T2R, inputs, pool, 0, dtype=torch.bfloat16, kernels=Kernels.TRITON)
    ref = finish_inputs(
        parts_PTO, indices, angles_T2R, inputs, want, 0, dtype=torch.bfloat16, kernels=Kernels.REFERENCE
    )
    torch.testing.assert_close(got[0], ref[0], rtol=1.6e-2, atol=1e-2)
    assert torch.equal(got[1], ref[1])
    for ours, theirs in zip(buffers(kind, pool), buffers(kind, want), strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    alone = finish_inputs(
        parts_PTO[:, 3:4], make_indices(kind, want, [103]), angles_T2R[3:4].contiguous(), inputs, want, 0,
        dtype=torch.bfloat16, kernels=Kernels.TRITON,
    )  # fmt: skip
    assert torch.equal(alone[0], got[0][3:4])
