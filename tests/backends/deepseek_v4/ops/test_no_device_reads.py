"""Slot maps and row formats never read the device: they run on tensors that have no values."""

import pytest
import torch

from backends.deepseek_v4.ops.compressed_slots import compressed_slots
from backends.deepseek_v4.ops.dense_indices import dense_indices, dense_local_indices
from backends.deepseek_v4.ops.gather_slots import gather_slots
from backends.deepseek_v4.ops.indexer_plan import indexer_plan
from backends.deepseek_v4.ops.page_lookup import mask_requests
from backends.deepseek_v4.ops.slot_mapping import mask_slots, slot_mapping
from backends.deepseek_v4.ops.topk_slots import topk_slots
from backends.deepseek_v4.ops.window_indices import window_indices, window_state_slots
from backends.deepseek_v4.rows.choose import index_rows, kv_rows, state_rows

META = torch.device("meta")


def ints(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.int32, device=META)


def test_index_functions():
    positions, reqs, pages, base = ints(6), ints(2), ints(2, 5), ints(2)
    valid = torch.empty(6, dtype=torch.bool, device=META)
    slots = slot_mapping(positions, reqs, pages, base, 64, 4)
    assert mask_slots(slots, valid, capacity=9).shape == (6,)
    assert mask_requests(positions, valid).shape == (6,)
    assert compressed_slots(positions, reqs, pages, 4, 64).shape == (6,)
    assert window_indices(positions, reqs, pages, base, 8, 64)[0].shape == (6, 8)
    assert window_state_slots(positions, reqs, pages, base, 8, 4).shape == (6, 8)
    assert topk_slots(ints(6, 3), reqs, pages, 64)[0].shape == (6, 3)
    assert dense_indices(positions, reqs, pages, 128, 2, 128)[0].shape == (6, 128)
    assert dense_local_indices(positions, 128, 7)[0].shape == (6, 7)
    assert gather_slots(pages, base, ints(3), 64, 11, base).shape == (11,)
    assert indexer_plan(positions, reqs, pages, 4, 64, 320).pages_TM.shape == (6, 5)


FORMATS = [kv_rows(d, head_dim=512, rope_dim=64, rows_per_page=64) for d in ("fp8", "bf16", "fp32")]
FORMATS += [index_rows(d, dim=128, rows_per_page=64, plain_dtype=torch.float32) for d in ("plain", "fp8", "mxfp4")]
FORMATS += [state_rows(width=2048, rows_per_page=4)]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{type(fmt).__name__}-{fmt.row_bytes}")
def test_row_formats(fmt):
    buffer = fmt.allocate(3, META)
    slots = torch.empty(6, dtype=torch.int64, device=META)
    fmt.write(buffer, slots, torch.empty(6, fmt.width, device=META))
    assert fmt.read(buffer, slots.view(2, 3)).shape == (2, 3, fmt.width)
    assert fmt.take(buffer, slots).shape == (6, fmt.width)
