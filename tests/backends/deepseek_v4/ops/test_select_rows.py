"""select_rows: the exact choice of the largest scores, in torch and in Triton."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.select_rows import kernel, select_rows
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from specdec.api import GroupTable

BOTH = pytest.mark.parametrize(
    "kernels", [Kernels.REFERENCE, pytest.param(Kernels.TRITON, marks=pytest.mark.interpreter)]
)


def indices_of(visible, device="cpu") -> PassIndices:
    """Indices of tokens that see the given numbers of CSA rows; token t belongs to request t % 2."""
    visible_T = torch.tensor(visible, dtype=torch.int32, device=device)
    reqs_T = (torch.arange(len(visible), device=device) % 2).to(torch.int32)
    return PassIndices(
        positions_T=visible_T * 4 - 1,
        reqs_T=reqs_T,
        write_slots={},
        entry_slots={},
        visible={AttentionKind.CSA: visible_T},
        window=SlotList(slots_TK=reqs_T.view(-1, 1), lens_T=reqs_T),
        hca=None,
    )


def table_of(num_pages, device="cpu") -> GroupTable:
    """Two requests with shuffled pages; rows of the table lie further apart than it is wide."""
    pages = torch.randperm(2 * num_pages).to(torch.int32).view(2, num_pages) + 1
    wide = torch.full((2, num_pages + 3), -1, dtype=torch.int32)
    wide[:, :num_pages] = pages
    return GroupTable(pages_BC=wide.to(device)[:, :num_pages])


def oracle(scores_TC, visible, table, rows_per_page, topk) -> list[list[int]]:
    lines = []
    for t, seen in enumerate(visible):
        seen = min(seen, scores_TC.shape[1])
        line = scores_TC[t, :seen].tolist()
        best = sorted(range(seen), key=lambda c, line=line: (-line[c], c))[:topk]
        pages = table.pages_BC[t % 2].tolist()
        slots = [pages[c // rows_per_page] * rows_per_page + c % rows_per_page for c in sorted(best)]
        lines.append([slot for slot in slots if slot >= 0])
    return lines


def check(found: SlotList, want: list[list[int]], width: int) -> None:
    assert found.slots_TK.shape == (len(want), width) and found.slots_TK.dtype == torch.int32
    assert found.lens_T.tolist() == [len(line) for line in want]
    for got, line in zip(found.slots_TK.tolist(), want, strict=True):
        assert got == line + [-1] * (width - len(line))


def scores_of(num_tokens, columns) -> torch.Tensor:
    """Scores with many ties, zeros of both signs and infinities, as a strided view; what is hidden is NaN."""
    scores = torch.randn(num_tokens, columns + 5)[:, :columns]
    scores[:, ::3] = scores[:, ::3].round()
    scores[:, 1::7] = -0.0
    scores[:, 2::11] = float("-inf")
    return scores


@BOTH
@pytest.mark.usefixtures("nan_empty")
def test_takes_the_largest_and_of_equals_the_first(kernels):
    visible = [0, 3, 20, 21, 57, 100]
    scores, table = scores_of(6, 100), table_of(13)
    for t, seen in enumerate(visible):
        scores[t, seen:] = float("nan")
    found = select_rows(scores, indices_of(visible), table, 8, topk=20, kernels=kernels)
    check(found, oracle(scores, visible, table, 8, 20), 64)


@BOTH
@pytest.mark.parametrize("value", [0.0, -1.5, float("-inf")])
def test_equal_scores_give_the_first_rows(kernels, value):
    scores, table = torch.full((1, 70), value), table_of(18)
    found = select_rows(scores, indices_of([70]), table, 4, topk=65, kernels=kernels)
    check(found, oracle(scores, [70], table, 4, 65), 128)


@BOTH
def test_zeros_of_both_signs_are_equal_and_nan_comes_first(kernels):
    scores = torch.tensor([[-0.0, 0.0, -0.0, 0.0, 5.0, float("nan"), -1.0]])
    table = GroupTable(pages_BC=torch.tensor([[3]], dtype=torch.int32))
    found = select_rows(scores, indices_of([7]), table, 8, topk=4, kernels=kernels)
    check(found, [[24, 25, 28, 29]], 64)


@BOTH
def test_rows_without_a_page_are_dropped(kernels):
    table = GroupTable(pages_BC=torch.tensor([[2, -1, 5], [-1, -1, -1]], dtype=torch.int32))
    scores = torch.arange(24.0).repeat(2, 1)
    found = select_rows(scores, indices_of([12, 9]), table, 4, topk=10, kernels=kernels)
    check(found, [[10, 11, 20, 21, 22, 23], []], 64)
    found = select_rows(scores, indices_of([9, 12]), table, 4, topk=10, kernels=kernels)
    check(found, [[8, 9, 10, 11, 20], []], 64)


@BOTH
def test_no_token(kernels):
    found = select_rows(torch.zeros(0, 9), indices_of([]), table_of(3), 4, topk=5, kernels=kernels)
    check(found, [], 64)


@pytest.mark.interpreter
@pytest.mark.usefixtures("nan_empty")
@pytest.mark.parametrize(("columns", "visible"), [(600, [600, 20, 21, 257, 0]), (129, [129, 128, 64, 65])])
def test_many_columns_are_narrowed_block_by_block(columns, visible):
    scores, table = scores_of(len(visible), columns), table_of(75)
    for t, seen in enumerate(visible):
        scores[t, seen:] = float("nan")
    found = kernel.select_rows(scores, indices_of(visible), table, 8, topk=20, block=64)
    check(found, oracle(scores, visible, table, 8, 20), 64)


@pytest.mark.interpreter
def test_equal_scores_in_many_blocks_give_the_first_rows():
    scores, table = torch.full((2, 600), -1.5), table_of(75)
    scores[1, 300:310] = 2.0
    found = kernel.select_rows(scores, indices_of([600, 500]), table, 8, topk=20, block=64)
    check(found, oracle(scores, [600, 500], table, 8, 20), 64)


@pytest.mark.interpreter
def test_more_columns_than_a_block():
    visible, columns = [9000, 4097], 9001
    scores, table = scores_of(2, columns), table_of(141)
    for t, seen in enumerate(visible):
        scores[t, seen:] = float("nan")
    found = select_rows(scores, indices_of(visible), table, 64, topk=70, kernels=Kernels.TRITON)
    check(found, oracle(scores, visible, table, 64, 70), 128)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("columns", "visible"),
    [(2048, [2048, 513, 512, 700, 0]), (20000, [20000, 4097, 90]), (262144, [262144, 5000, 512, 100001])],
)
def test_gpu_kernel_equals_the_oracle(columns, visible):
    scores, table = scores_of(len(visible), columns), table_of(4096)
    for t, seen in enumerate(visible):
        scores[t, seen:] = float("nan")
    on_gpu = GroupTable(pages_BC=table.pages_BC.cuda())
    found = select_rows(scores.cuda(), indices_of(visible, "cuda"), on_gpu, 64, topk=512, kernels=Kernels.TRITON)
    check(found, oracle(scores, visible, table, 64, 512), 512)
