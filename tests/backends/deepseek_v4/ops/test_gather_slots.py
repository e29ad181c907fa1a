"""Slots of stretches of rows one request after the other, against a scalar oracle."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.ops.gather_slots import gather_slots


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


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
