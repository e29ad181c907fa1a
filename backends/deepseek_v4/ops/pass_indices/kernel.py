"""pass_indices in Triton: one launch, a program for each token and section.

Sections of a token: its own rows in all groups, its window, and blocks of its HCA rows.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, AttentionKind, compressed_group, state_group
from backends.deepseek_v4.ops.device.pages import first_page, page_slots
from backends.deepseek_v4.pass_values import IndexShape, PassIndices, SlotList
from specdec.api import PackedPass, Tables
from specdec.cache.spec import ceil_div
from specdec.ops.early import EarlyKernel, begin

# Rows of the tensor that holds everything of one value per token.
SWA_SLOT = tl.constexpr(0)
WINDOW_LEN = tl.constexpr(1)
CSA_STATE_SLOT = tl.constexpr(2)
INDEX_STATE_SLOT = tl.constexpr(3)
CSA_ENTRY_SLOT = tl.constexpr(4)
CSA_VISIBLE = tl.constexpr(5)
HCA_STATE_SLOT = tl.constexpr(6)
HCA_ENTRY_SLOT = tl.constexpr(7)
HCA_VISIBLE = tl.constexpr(8)
HCA_LEN = tl.constexpr(9)
NUM_ROWS = 10

CSA_RATIO = tl.constexpr(AttentionKind.CSA.ratio)
HCA_RATIO = tl.constexpr(AttentionKind.HCA.ratio)

# Groups in the order of the kernel's arguments: one row per token with a base, then full history.
SLIDING_GROUPS = (SWA_GROUP, state_group(AttentionKind.CSA), INDEX_STATE_GROUP, state_group(AttentionKind.HCA))
HISTORY_GROUPS = (compressed_group(AttentionKind.CSA), compressed_group(AttentionKind.HCA))
GROUPS = SLIDING_GROUPS + HISTORY_GROUPS
ALIGNED_VALUES = 4
HCA_COLUMNS_PER_PROGRAM = 1024
FIRST_HCA_SECTION = tl.constexpr(2)


@triton.jit
def _own_slot(table, req, position, ROWS_PER_PAGE: tl.constexpr):
    """Slot of a position in a sliding group of one row per token."""
    pages_ptr, row_stride, num_columns, base_ptr, base_stride = table
    base = first_page(base_ptr, base_stride, req)
    return page_slots(pages_ptr, row_stride, num_columns, req, base, position, ROWS_PER_PAGE)


@triton.jit
def _entry_slot(table, req, position, RATIO: tl.constexpr, ROWS_PER_PAGE: tl.constexpr):
    """Slot of the compressed row that a position closes; -1 where it closes none."""
    pages_ptr, row_stride, num_columns = table
    closes = (position >= 0) & ((position + 1) % RATIO == 0)
    entry = tl.where(closes, position // RATIO, -1)
    return page_slots(pages_ptr, row_stride, num_columns, req, 0, entry, ROWS_PER_PAGE)


@triton.jit
def _visible(position, RATIO: tl.constexpr):
    return (tl.maximum(position, -1) + 1) // RATIO


@triton.jit
def _write_window(
    line_ptr, table, req, position,
    WINDOW: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ROWS_PER_PAGE: tl.constexpr,
):  # fmt: skip
    """Write the slots of the window that ends at a position, packed to the left; returns their number."""
    columns = tl.arange(0, BLOCK)
    keys = tl.maximum(position - WINDOW + 1, 0) + columns
    # Nothing of a padding token passes: its position is negative and its keys begin at 0.
    keys = tl.where((columns < WINDOW) & (keys <= position), keys, -1)
    slots = _own_slot(table, req, keys, ROWS_PER_PAGE)
    found = (slots >= 0).to(tl.int32)
    length = tl.sum(found, axis=0)
    tl.store(line_ptr + tl.cumsum(found, axis=0) - 1, slots, mask=slots >= 0)
    tl.store(line_ptr + columns, columns * 0 - 1, mask=(columns >= length) & (columns < COLUMNS))
    return length


@triton.jit
def _write_entries(
    line_ptr, table, req, position, first,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ROWS_PER_PAGE: tl.constexpr,
):  # fmt: skip
    """Write a block of the list of all HCA rows that a position sees."""
    pages_ptr, row_stride, num_columns = table
    entries = first + tl.arange(0, BLOCK)
    seen = tl.where(entries < _visible(position, HCA_RATIO), entries, -1)
    slots = page_slots(pages_ptr, row_stride, num_columns, req, 0, seen, ROWS_PER_PAGE)
    tl.store(line_ptr + entries, slots, mask=entries < COLUMNS)


# One variant whatever the number of tokens and the shapes of the tables: no such number is worth a compilation.
@EarlyKernel
@triton.jit(
    do_not_specialize=[
        "positions_ptr", "position_stride", "reqs_ptr", "req_stride", "row_stride",
        "swa_ptr", "swa_stride", "swa_columns", "swa_base_ptr", "swa_base_stride",
        "csa_state_ptr", "csa_state_stride", "csa_state_columns", "csa_state_base_ptr", "csa_state_base_stride",
        "index_ptr", "index_stride", "index_columns", "index_base_ptr", "index_base_stride",
        "hca_state_ptr", "hca_state_stride", "hca_state_columns", "hca_state_base_ptr", "hca_state_base_stride",
        "csa_ptr", "csa_stride", "csa_columns", "hca_ptr", "hca_stride", "hca_columns",
    ]
)  # fmt: skip
def _pass_indices(
    positions_ptr, position_stride, reqs_ptr, req_stride, rows_ptr, row_stride, window_ptr, hca_list_ptr,
    swa_ptr, swa_stride, swa_columns, swa_base_ptr, swa_base_stride,
    csa_state_ptr, csa_state_stride, csa_state_columns, csa_state_base_ptr, csa_state_base_stride,
    index_ptr, index_stride, index_columns, index_base_ptr, index_base_stride,
    hca_state_ptr, hca_state_stride, hca_state_columns, hca_state_base_ptr, hca_state_base_stride,
    csa_ptr, csa_stride, csa_columns, hca_ptr, hca_stride, hca_columns,
    HAS_CSA: tl.constexpr, HAS_HCA: tl.constexpr,
    SWA_PAGE: tl.constexpr, CSA_STATE_PAGE: tl.constexpr, INDEX_PAGE: tl.constexpr, HCA_STATE_PAGE: tl.constexpr,
    CSA_PAGE: tl.constexpr, HCA_PAGE: tl.constexpr,
    WINDOW: tl.constexpr, WINDOW_COLUMNS: tl.constexpr, WINDOW_BLOCK: tl.constexpr,
    HCA_COLUMNS: tl.constexpr, HCA_BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    token = tl.program_id(0)
    section = tl.program_id(1)
    position = tl.load(positions_ptr + token * position_stride)
    req = tl.load(reqs_ptr + token * req_stride)
    rows_ptr += token
    swa = (swa_ptr, swa_stride, swa_columns, swa_base_ptr, swa_base_stride)
    hca = (hca_ptr, hca_stride, hca_columns)
    if section == 0:
        tl.store(rows_ptr + SWA_SLOT * row_stride, _own_slot(swa, req, position, SWA_PAGE))
        if HAS_CSA:
            csa_state = (csa_state_ptr, csa_state_stride, csa_state_columns, csa_state_base_ptr, csa_state_base_stride)
            index_state = (index_ptr, index_stride, index_columns, index_base_ptr, index_base_stride)
            csa = (csa_ptr, csa_stride, csa_columns)
            tl.store(rows_ptr + CSA_STATE_SLOT * row_stride, _own_slot(csa_state, req, position, CSA_STATE_PAGE))
            tl.store(rows_ptr + INDEX_STATE_SLOT * row_stride, _own_slot(index_state, req, position, INDEX_PAGE))
            tl.store(rows_ptr + CSA_ENTRY_SLOT * row_stride, _entry_slot(csa, req, position, CSA_RATIO, CSA_PAGE))
            tl.store(rows_ptr + CSA_VISIBLE * row_stride, _visible(position, CSA_RATIO))
        if HAS_HCA:
            hca_state = (hca_state_ptr, hca_state_stride, hca_state_columns, hca_state_base_ptr, hca_state_base_stride)
            tl.store(rows_ptr + HCA_STATE_SLOT * row_stride, _own_slot(hca_state, req, position, HCA_STATE_PAGE))
            tl.store(rows_ptr + HCA_ENTRY_SLOT * row_stride, _entry_slot(hca, req, position, HCA_RATIO, HCA_PAGE))
            visible = _visible(position, HCA_RATIO)
            tl.store(rows_ptr + HCA_VISIBLE * row_stride, visible)
            tl.store(rows_ptr + HCA_LEN * row_stride, tl.minimum(visible, HCA_COLUMNS))
    elif section == 1:
        line = window_ptr + token * WINDOW_COLUMNS
        length = _write_window(line, swa, req, position, WINDOW, WINDOW_COLUMNS, WINDOW_BLOCK, SWA_PAGE)
        tl.store(rows_ptr + WINDOW_LEN * row_stride, length)
    elif HAS_HCA:
        first = (section - FIRST_HCA_SECTION) * HCA_BLOCK
        _write_entries(hca_list_ptr + token * HCA_COLUMNS, hca, req, position, first, HCA_COLUMNS, HCA_BLOCK, HCA_PAGE)


def pass_indices(packed: PackedPass, shape: IndexShape) -> PassIndices:
    """See ``pass_indices`` of the package."""
    num_tokens, device = packed.positions_T.shape[0], packed.positions_T.device
    has_csa, has_hca = AttentionKind.CSA in shape.kinds, AttentionKind.HCA in shape.kinds
    # Rows begin on 16 bytes, so that the alignment of a result does not depend on the number of tokens.
    row_stride = ALIGNED_VALUES * ceil_div(num_tokens, ALIGNED_VALUES)
    rows = torch.empty((NUM_ROWS, row_stride), dtype=torch.int32, device=device)
    window_TK = torch.empty((num_tokens, shape.window_columns), dtype=torch.int32, device=device)
    hca_columns = shape.hca_columns if has_hca else 0
    hca_TK = torch.empty((num_tokens, hca_columns), dtype=torch.int32, device=device)
    hca_block = min(HCA_COLUMNS_PER_PROGRAM, triton.next_power_of_2(max(1, hca_columns)))
    if num_tokens:
        _pass_indices[num_tokens, FIRST_HCA_SECTION.value + ceil_div(hca_columns, hca_block)](
            packed.positions_T, packed.positions_T.stride(0), packed.reqs_T, packed.reqs_T.stride(0),
            rows, row_stride, window_TK, hca_TK if has_hca else window_TK,
            *(value for group_id in GROUPS for value in _table_arguments(packed.tables, shape, group_id)),
            has_csa, has_hca,
            *(shape.groups[group_id].rows_per_page if group_id in shape.groups else 1 for group_id in GROUPS),
            WINDOW=shape.window_tokens, WINDOW_COLUMNS=shape.window_columns,
            WINDOW_BLOCK=triton.next_power_of_2(shape.window_columns),
            HCA_COLUMNS=hca_columns, HCA_BLOCK=hca_block,
        )  # fmt: skip
    return _results(packed, shape, rows[:, :num_tokens], window_TK, hca_TK)


def _table_arguments(tables: Tables, shape: IndexShape, group_id: str) -> tuple[torch.Tensor | int, ...]:
    """A block table as the kernel takes it; a table that is not read stands in for an absent one."""
    is_sliding = group_id not in HISTORY_GROUPS
    table = tables[group_id if group_id in shape.groups else SWA_GROUP]
    pages_BC, base_B = table.pages_BC, table.base_B
    assert pages_BC.stride(1) == 1 or pages_BC.shape[1] <= 1, "neighbouring columns of a block table are adjacent"
    assert not is_sliding or base_B is not None, "a sliding group has base offsets"
    arguments = pages_BC, pages_BC.stride(0), pages_BC.shape[1]
    return (*arguments, base_B, base_B.stride(0)) if is_sliding else arguments


def _results(
    packed: PackedPass, shape: IndexShape, rows_XT: torch.Tensor, window_TK: torch.Tensor, hca_TK: torch.Tensor
) -> PassIndices:
    """Names for what the kernel has written."""
    write_slots, entry_slots, visible, hca = {SWA_GROUP: rows_XT[SWA_SLOT.value]}, {}, {}, None
    if AttentionKind.CSA in shape.kinds:
        write_slots[state_group(AttentionKind.CSA)] = rows_XT[CSA_STATE_SLOT.value]
        write_slots[INDEX_STATE_GROUP] = rows_XT[INDEX_STATE_SLOT.value]
        entry_slots[AttentionKind.CSA] = rows_XT[CSA_ENTRY_SLOT.value]
        visible[AttentionKind.CSA] = rows_XT[CSA_VISIBLE.value]
    if AttentionKind.HCA in shape.kinds:
        write_slots[state_group(AttentionKind.HCA)] = rows_XT[HCA_STATE_SLOT.value]
        entry_slots[AttentionKind.HCA] = rows_XT[HCA_ENTRY_SLOT.value]
        visible[AttentionKind.HCA] = rows_XT[HCA_VISIBLE.value]
        hca = SlotList(slots_TK=hca_TK, lens_T=rows_XT[HCA_LEN.value])
    return PassIndices(
        positions_T=packed.positions_T,
        reqs_T=packed.reqs_T,
        write_slots=write_slots,
        entry_slots=entry_slots,
        visible=visible,
        window=SlotList(slots_TK=window_TK, lens_T=rows_XT[WINDOW_LEN.value]),
        hca=hca,
    )
