"""Sparse attention over decoded pages: the indices name the rows that the slots name."""

import pytest
import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.ops.sparse_attention.prefill import decoded_keys, prefill_attention
from backends.deepseek_v4.pass_values import SlotList
from backends.deepseek_v4.rows.choose import kv_rows

CPU = torch.device("cpu")


def key_list(rows_per_page, lens, width, device=CPU, cache_dtype="fp8") -> tuple[KeyList, torch.Tensor]:
    """Random rows in slots of half of the pages, and these pages in an order of their own with gaps between."""
    rows = kv_rows(cache_dtype, head_dim=512, rope_dim=64, rows_per_page=rows_per_page)
    num_pages = 2 * (-(-width // rows_per_page)) + 3
    buffer = rows.allocate(num_pages, device)
    everything = torch.arange(num_pages * rows_per_page, device=device)
    rows.put(buffer, everything, torch.randn(len(everything), 512, device=device))
    pages = (1 + torch.randperm(num_pages - 1)[: num_pages // 2 + 1]).int()
    candidates = (pages.unsqueeze(1) * rows_per_page + torch.arange(rows_per_page)).flatten()
    slots_TK = torch.full((len(lens), width), -1, dtype=torch.int32)
    for t, length in enumerate(lens):
        slots_TK[t, :length] = candidates[torch.randperm(len(candidates))[:length]].int()
    table = torch.full((2, len(pages)), -1, dtype=torch.int32)
    table[0, ::2], table[1, 1::2] = pages[::2], pages[1::2]
    lens_T = torch.tensor(lens, dtype=torch.int32, device=device)
    slots = SlotList(slots_TK=slots_TK.to(device), lens_T=lens_T)
    return KeyList(buffer=buffer, rows=rows, slots=slots), table.to(device)


@pytest.mark.parametrize("with_extra", [False, True])
@pytest.mark.usefixtures("nan_empty")
def test_indices_name_the_rows_of_the_slots(with_extra):
    lists = [key_list(16, [0, 1, 60, 64], 64)]
    if with_extra:
        lists.append(key_list(2, [3, 0, 70, 192], 192))
    # Slots behind the counted ones do not count, whatever they are.
    lists[0][0].slots.slots_TK[0, 5] = 0
    decoded = decoded_keys(lists, Kernels.REFERENCE)
    assert decoded.indices_TK.shape[1] % 128 == 0 and decoded.indices_TK.dtype == torch.int32
    assert decoded.rows_SD.isfinite().all() and decoded.indices_TK.max() < len(decoded.rows_SD)
    for t in range(4):
        indices = decoded.indices_TK[t]
        assert (indices[decoded.lens_T[t] :] == -1).all()
        expected = [keys.rows.read(keys.buffer, keys.slots.slots_TK[t, : keys.slots.lens_T[t]]) for keys, _ in lists]
        assert torch.equal(decoded.rows_SD[indices[indices >= 0].long()], torch.cat(expected))


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", ["fp8", "bf16"])
def test_gpu_equals_the_reference(cache_dtype):
    pytest.importorskip("flash_mla")
    device = torch.device("cuda")
    lens = torch.randint(0, 129, (100,)).tolist()
    window, extra = (
        key_list(64, lens, 128, device, cache_dtype),
        key_list(2, [4 * n for n in lens], 512, device, cache_dtype),
    )
    q_THD = torch.randn(100, 64, 512, device=device).bfloat16()
    sinks_H = torch.randn(64, device=device)
    radians = torch.rand(100, 32, device=device) * 6
    angles = {"scale": 512**-0.5, "angles_T2R": torch.stack([radians.cos(), radians.sin()], dim=1)}
    for lists in ([window], [window, extra]):
        more = lists[1][0] if len(lists) == 2 else None
        want = sparse_attention(q_THD.float(), window[0], more, sinks_H, **angles, kernels=Kernels.REFERENCE)
        got = prefill_attention(q_THD, lists, sinks_H, **angles)
        assert (got.float() - want).norm() < 4e-3 * want.norm()
