"""BlockTables and the ragged helper: padding, order, bases, and what is refused."""

import pytest
import torch

from specdec.cache.allocator import TableChange
from specdec.cache.spec import CacheGroupSpec, Retention
from specdec.cache.tables import BlockTables, from_ragged
from specdec.errors import CapacityError, ConfigError, MetadataError

CPU = torch.device("cpu")
WINDOW = CacheGroupSpec(group_id="window", retention=Retention.SLIDING_WINDOW, rows_per_page=4, sliding_window_tokens=8)
HISTORY = CacheGroupSpec(group_id="history", retention=Retention.FULL_HISTORY, rows_per_page=4)
COLUMNS = {"window": 3, "history": 2}


def tables(max_rows: int = 3, device: torch.device = CPU) -> BlockTables:
    return BlockTables([WINDOW, HISTORY], COLUMNS, max_rows=max_rows, device=device)


def test_fresh_tables_hold_no_page():
    view = tables().view((0, 1))
    assert view["window"].pages_BC.tolist() == [[-1] * 3] * 2
    assert view["history"].pages_BC.tolist() == [[-1] * 2] * 2
    assert view["window"].base_B.tolist() == [0, 0]


def test_write_pads_and_clears_what_a_longer_row_left():
    block = tables()
    block.write([TableChange(1, "window", [7, 8, 9], 2)])
    assert block.view((1,))["window"].pages_BC.tolist() == [[7, 8, 9]]
    block.write([TableChange(1, "window", [9], 4)])
    view = block.view((1,))["window"]
    assert view.pages_BC.tolist() == [[9, -1, -1]]
    assert view.base_B.tolist() == [4]
    block.write([TableChange(1, "window", [], 0)])
    assert block.view((1,))["window"].pages_BC.tolist() == [[-1, -1, -1]]


def test_write_touches_one_row_of_one_group():
    block = tables()
    block.write([TableChange(1, "history", [5], 0)])
    view = block.view((0, 1, 2))
    assert view["history"].pages_BC.tolist() == [[-1, -1], [5, -1], [-1, -1]]
    assert view["window"].pages_BC.tolist() == [[-1] * 3] * 3


@pytest.mark.parametrize("rows", [(2, 0), (0, 2), (1,), (1, 2), (0, 1, 2), ()])
def test_view_is_in_batch_order(rows):
    block = tables()
    block.write([TableChange(row, "window", [10 + row], row) for row in range(3)])
    view = block.view(rows)["window"]
    assert view.pages_BC[:, 0].tolist() == [10 + row for row in rows]
    assert view.base_B.tolist() == list(rows)


@pytest.mark.parametrize("rows", [(0,), (0, 2), (2, 1)])
def test_later_view_shows_later_writes(rows):
    block = tables()
    block.view(rows)
    block.write([TableChange(0, "history", [3], 0), TableChange(2, "history", [4], 0)])
    shown = dict(zip(rows, block.view(rows)["history"].pages_BC[:, 0].tolist(), strict=True))
    assert shown == {row: {0: 3, 1: -1, 2: 4}[row] for row in rows}


def test_tables_are_int32_and_history_has_no_base():
    view = tables().view((0,))
    assert view["window"].pages_BC.dtype == view["window"].base_B.dtype == torch.int32
    assert view["history"].pages_BC.dtype == torch.int32
    assert view["history"].base_B is None


def test_row_with_more_pages_than_columns_is_refused():
    with pytest.raises(CapacityError, match="history: row 0 has 3 pages, its table has 2 columns"):
        tables().write([TableChange(0, "history", [1, 2, 3], 0)])


@pytest.mark.parametrize("rows", [(3,), (-1,), (0, 5)])
def test_rows_outside_the_table_are_refused(rows):
    with pytest.raises(MetadataError, match=r"rows must lie in 0\.\.2"):
        tables().view(rows)


def test_missing_column_count_is_refused():
    with pytest.raises(ConfigError, match="no number of table columns"):
        BlockTables([WINDOW, HISTORY], {"window": 3}, max_rows=1, device=CPU)


DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_device_tables_keep_their_address_and_follow_the_host(device):
    block = tables(device=device)
    address = block.view((0,))["window"].pages_BC.data_ptr()
    for base in range(20):
        block.write([TableChange(0, "window", [base + 1], base)])
        view = block.view((0,))["window"]
        assert view.pages_BC.data_ptr() == address
        assert (view.pages_BC.tolist(), view.base_B.tolist()) == ([[base + 1, -1, -1]], [base])


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("rows", [(1,), (0, 3), (3, 1), (2, 2)])
def test_rows_between_changed_ones_stay_as_they_are(device, rows):
    block = tables(max_rows=5, device=device)
    block.write([TableChange(row, "history", [row + 1], 0) for row in range(5)])
    block.write([TableChange(row, "history", [90 + row], 0) for row in rows])
    shown = block.gather(torch.arange(6, device=device))["history"].pages_BC[:, 0].tolist()
    assert shown == [90 + row if row in rows else row + 1 for row in range(5)] + [-1]


@pytest.mark.gpu
def test_copy_in_flight_does_not_see_later_writes():
    """Writes follow one another while the device is busy, and each gather sees the write before it."""
    block = tables(max_rows=64, device=torch.device("cuda"))
    rows_B, busy_DD = torch.arange(64, device="cuda"), torch.zeros(4096, 4096, device="cuda")
    seen = []
    for step in range(1, 9):
        busy_DD = busy_DD @ busy_DD
        block.write([TableChange(row, "history", [100 * step + row], 0) for row in range(64)])
        seen.append(block.gather(rows_B)["history"].pages_BC[:, 0].clone())
    for step, shown_B in enumerate(seen, start=1):
        assert shown_B.tolist() == [100 * step + row for row in range(64)]


def test_ragged_rows_are_padded_to_the_longest():
    made = from_ragged({"a": [[1, 2], [3]], "b": [[4], [5]]}, num_reqs=2, bases={"a": [0, 6]}, device=CPU)
    assert made["a"].pages_BC.tolist() == [[1, 2], [3, -1]]
    assert made["a"].base_B.tolist() == [0, 6]
    assert made["b"].base_B is None
    assert made["a"].pages_BC.dtype == made["a"].base_B.dtype == torch.int32


def test_ragged_group_without_rows_is_left_out():
    assert from_ragged({"a": [], "b": [[1]]}, num_reqs=1, bases={}, device=CPU).keys() == {"b"}


def test_ragged_group_of_empty_rows_has_no_columns():
    made = from_ragged({"a": [[], [], []]}, num_reqs=3, bases={}, device=CPU)
    assert made["a"].pages_BC.shape == (3, 0)


@pytest.mark.parametrize(
    ("bases", "message"), [({}, "a: 2 page rows for 3 requests"), ({"b": [1]}, "b: 1 bases for 3 requests")]
)
def test_ragged_row_count_must_match_the_requests(bases, message):
    rows = {"b": [[1], [2], [3]]} if bases else {"a": [[1], [2]]}
    with pytest.raises(MetadataError, match=message):
        from_ragged(rows, num_reqs=3, bases=bases, device=CPU)
