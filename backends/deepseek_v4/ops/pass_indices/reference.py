"""pass_indices in torch, from the slot functions of single groups."""

import torch

from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, AttentionKind, compressed_group, state_group
from backends.deepseek_v4.ops.compressed_slots import compressed_slots, visible_rows
from backends.deepseek_v4.ops.dense_indices import dense_indices
from backends.deepseek_v4.ops.slot_mapping import slot_mapping
from backends.deepseek_v4.ops.window_indices import window_indices
from backends.deepseek_v4.pass_values import IndexShape, PassIndices, SlotList
from specdec.api import PackedPass
from specdec.cache.spec import PAD_SLOT


def pass_indices(packed: PackedPass, shape: IndexShape) -> PassIndices:
    """See ``pass_indices`` of the package."""
    positions_T = packed.positions_T
    groups = {SWA_GROUP: None} | {state_group(kind): None for kind in shape.kinds}
    if AttentionKind.CSA in shape.kinds:
        groups[INDEX_STATE_GROUP] = None
    return PassIndices(
        positions_T=positions_T,
        reqs_T=packed.reqs_T,
        write_slots={group_id: _write_slots(packed, shape, group_id) for group_id in groups},
        entry_slots={kind: _entry_slots(packed, shape, kind) for kind in shape.kinds},
        visible={kind: visible_rows(positions_T, kind.ratio).int() for kind in shape.kinds},
        window=_window(packed, shape),
        hca=_hca(packed, shape) if AttentionKind.HCA in shape.kinds else None,
    )


def _write_slots(packed: PackedPass, shape: IndexShape, group_id: str) -> torch.Tensor:
    table, rows_per_page = packed.tables[group_id], shape.groups[group_id].rows_per_page
    return slot_mapping(packed.positions_T, packed.reqs_T, table.pages_BC, table.base_B, rows_per_page).int()


def _entry_slots(packed: PackedPass, shape: IndexShape, kind: AttentionKind) -> torch.Tensor:
    group_id = compressed_group(kind)
    pages_BC, rows_per_page = packed.tables[group_id].pages_BC, shape.groups[group_id].rows_per_page
    return compressed_slots(packed.positions_T, packed.reqs_T, pages_BC, kind.ratio, rows_per_page).int()


def _window(packed: PackedPass, shape: IndexShape) -> SlotList:
    table, rows_per_page = packed.tables[SWA_GROUP], shape.groups[SWA_GROUP].rows_per_page
    slots_TW, _ = window_indices(
        packed.positions_T, packed.reqs_T, table.pages_BC, table.base_B, shape.window_tokens, rows_per_page
    )
    found_TW = slots_TW >= 0
    order_TW = torch.argsort((~found_TW).to(torch.int8), dim=1, stable=True)
    return SlotList(
        slots_TK=_pad(slots_TW.gather(1, order_TW), shape.window_columns), lens_T=found_TW.sum(1, dtype=torch.int32)
    )


def _hca(packed: PackedPass, shape: IndexShape) -> SlotList:
    kind = AttentionKind.HCA
    group_id = compressed_group(kind)
    pages_BC, rows_per_page = packed.tables[group_id].pages_BC, shape.groups[group_id].rows_per_page
    slots_TK, lens_T = dense_indices(
        packed.positions_T, packed.reqs_T, pages_BC, kind.ratio, rows_per_page, shape.hca_columns
    )
    return SlotList(slots_TK=slots_TK.int(), lens_T=lens_T.int())


def _pad(slots_TW: torch.Tensor, num_columns: int) -> torch.Tensor:
    return torch.nn.functional.pad(slots_TW, (0, num_columns - slots_TW.shape[1]), value=PAD_SLOT)
