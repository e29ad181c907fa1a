"""Keys of prompt chunks in the gathered workspace, and the gathering itself, against scalar oracles."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.ops.dense_indices import dense_local_indices
from backends.deepseek_v4.ops.gather_slots import gather_slots
from backends.deepseek_v4.ops.prefill_indices import PrefillWorkspace, gather_range, prefill_indices


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_gather_range_takes_the_window_before_the_chunk():
    assert gather_range(0, 7, 4) == (0, 7)
    assert gather_range(2, 7, 4) == (0, 9)
    assert gather_range(100, 7, 4) == (97, 10)
    assert gather_range(100, 1, 1) == (100, 1)


def test_compressed_rows_come_first_then_the_window():
    space = PrefillWorkspace(ratio=4, window=3, compressed_rows=5, raw_rows=6)
    topk = ints([[1, 0, -1], [-1, -1, -1]])
    indices, lens = prefill_indices(ints([9, 1]), ints([0, 1]), topk, ints([6, 0]), space)
    assert indices.shape == (2, 128) and lens.tolist() == [5, 2]
    assert indices[0, :6].tolist() == [1, 0, 5 + 1, 5 + 2, 5 + 3, -1]
    assert indices[1, :3].tolist() == [11 + 5, 11 + 6, -1]


def test_width_is_rounded_up_to_128_and_may_have_no_compressed_part():
    space = PrefillWorkspace(ratio=1, window=128, compressed_rows=0, raw_rows=300)
    none = torch.zeros(2, 0, dtype=torch.int64)
    indices, lens = prefill_indices(ints([0, 299]), ints([0]), none, ints([0]), space)
    assert indices.shape == (2, 128) and lens.tolist() == [1, 128]
    assert indices[1].tolist() == list(range(172, 300))
    wide = PrefillWorkspace(ratio=4, window=128, compressed_rows=75, raw_rows=300)
    assert prefill_indices(ints([0]), ints([0]), ints([[0]]), ints([0]), wide)[0].shape == (1, 256)


def test_a_selected_row_outside_of_the_workspace_is_dropped():
    """Counted on, it would name one of the raw rows that follow, or another request's."""
    space = PrefillWorkspace(ratio=1, window=1, compressed_rows=3, raw_rows=4)
    indices, lens = prefill_indices(ints([9]), ints([0]), ints([[2, 3, 0]]), ints([9]), space)
    assert lens.tolist() == [3] and indices[0, :4].tolist() == [2, 0, 3, -1]


def test_padding_and_empty_batches():
    space = PrefillWorkspace(ratio=4, window=3, compressed_rows=5, raw_rows=6)
    indices, lens = prefill_indices(ints([9, -3, 9]), ints([-1, 0, 7]), ints([[0]] * 3), ints([6]), space)
    assert lens.tolist() == [0, 0, 0] and (indices == -1).all()
    indices, lens = prefill_indices(ints([]), ints([]), ints([]).view(0, 2), ints([]), space)
    assert indices.shape == (0, 128) and lens.shape == (0,)


@st.composite
def passes(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(start, query length) of up to four prompt chunks."""
    return draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=4))


@settings(deadline=None, max_examples=60)
@given(passes(), st.sampled_from([1, 2, 5, 16]), st.sampled_from([2, 4, 16]))
def test_indices_point_at_the_rows_that_the_gather_puts_there(chunks, window, ratio):
    """Fill a workspace by name of row, then read it through the indices."""
    ranges = [gather_range(start, n, window) for start, n in chunks]
    compressed = max((start + n) // ratio for start, n in chunks)
    space = PrefillWorkspace(ratio=ratio, window=window, compressed_rows=compressed, raw_rows=max(n for _, n in ranges))
    content: dict[int, tuple[int, str, int]] = {}
    for i, (first, length) in enumerate(ranges):
        origin = i * space.request_stride
        content.update({origin + j: (i, "compressed", j) for j in range(compressed)})
        content.update({origin + compressed + j: (i, "raw", first + j) for j in range(length)})
    positions = [start + j for start, n in chunks for j in range(n)]
    reqs = [i for i, (_, n) in enumerate(chunks) for _ in range(n)]
    topk, _ = dense_local_indices(ints(positions), ratio, compressed)
    starts = ints([first for first, _ in ranges])
    indices, lens = prefill_indices(ints(positions), ints(reqs), topk, starts, space)
    for t, (req, p) in enumerate(zip(reqs, positions, strict=True)):
        want = [(req, "compressed", j) for j in range((p + 1) // ratio)]
        want += [(req, "raw", k) for k in range(max(0, p - window + 1), p + 1)]
        found = indices[t].tolist()
        assert [content[row] for row in found[: lens[t]]] == want
        assert set(found[lens[t] :]) <= {-1}


def test_gather_golden_of_two_requests():
    slots = gather_slots(ints([[2, 0], [1, 0]]), None, ints([0, 5, 7]), 4, 8)
    assert slots.tolist() == [8, 9, 10, 11, 0, 4, 5, -1]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=4),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_gather_slots_equal_the_oracle(stretches, rows_per_page, sliding, spare):
    """``stretches`` are (rows to gather, first row) of each request."""
    num_reqs, columns = len(stretches), 6
    pages = torch.arange(num_reqs * columns, dtype=torch.int32).view(num_reqs, columns) + 1
    base = [first // rows_per_page if sliding else 0 for _, first in stretches]
    cumulative = [0]
    for count, _ in stretches:
        cumulative.append(cumulative[-1] + count)
    want = []
    for req, (count, first) in enumerate(stretches):
        for row in range(first, first + count):
            column = row // rows_per_page - base[req]
            page = pages[req, column].item() if column < columns else -1
            want.append(page * rows_per_page + row % rows_per_page if page >= 0 else -1)
    got = gather_slots(
        pages,
        ints(base) if sliding else None,
        ints(cumulative),
        rows_per_page,
        cumulative[-1] + spare,
        ints([first for _, first in stretches]),
    )
    assert got.tolist() == want + [-1] * spare
