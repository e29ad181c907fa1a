"""index_scores: weighted rectified products of a token's queries with its request's keys."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.index_scores import implementation, index_scores
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from backends.deepseek_v4.rows.choose import index_rows
from specdec.api import GroupTable

CPU = torch.device("cpu")


def indices_of(visible, device=CPU) -> PassIndices:
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


class Case:
    """Random queries, weights and keys; rows of pages that no request owns are NaN where possible."""

    def __init__(
        self, indexer_dtype, visible, *, heads, dim, rows_per_page, num_pages, dtype=torch.float32, device=CPU
    ):
        plain = torch.float32 if dtype == torch.float32 else torch.bfloat16
        self.rows = index_rows(indexer_dtype, dim=dim, rows_per_page=rows_per_page, plain_dtype=plain)
        total = 2 * num_pages + 1
        pages = torch.randperm(2 * num_pages).to(torch.int32).view(2, num_pages) + 1
        wide = torch.full((2, num_pages + 3), -1, dtype=torch.int32)
        wide[:, :num_pages] = pages
        self.table = GroupTable(pages_BC=wide.to(device)[:, :num_pages])
        self.keys = self.rows.allocate(total, device)
        slots = torch.arange(rows_per_page, total * rows_per_page, device=device)
        self.rows.put(self.keys, slots, torch.randn(len(slots), dim, device=device))
        garbage = torch.full((rows_per_page, dim), float("nan"), device=device)
        self.rows.put(self.keys, torch.arange(rows_per_page, device=device), garbage)
        q = self.rows.prepare_query(torch.randn(len(visible), heads, dim, device=device).to(dtype))
        self.q_TJD = q.to(dtype).contiguous()
        self.weights_TJ = torch.randn(len(visible), heads + 3, device=device)[:, :heads]
        self.visible, self.indices = visible, indices_of(visible, device)
        self.num_columns = num_pages * rows_per_page

    def scores(self, kernels, topk=0, some=slice(None)) -> torch.Tensor:
        indices = indices_of(self.visible, self.q_TJD.device)
        one = PassIndices(
            positions_T=indices.positions_T[some],
            reqs_T=indices.reqs_T[some],
            write_slots={},
            entry_slots={},
            visible={AttentionKind.CSA: indices.visible[AttentionKind.CSA][some]},
            window=indices.window,
            hca=None,
        )
        return index_scores(
            self.q_TJD[some],
            self.weights_TJ[some],
            self.keys,
            self.rows,
            self.table,
            one,
            topk=topk,
            num_columns=self.num_columns,
            kernels=kernels,
        )

    def seen(self, scores_TC, topk=0) -> torch.Tensor:
        """The scores that are specified, one after the other."""
        counts = [seen if seen > topk else 0 for seen in self.visible]
        return torch.cat([scores_TC[t, :count] for t, count in enumerate(counts)])


def test_reference_is_the_definition():
    case = Case("plain", [0, 5, 12], heads=3, dim=10, rows_per_page=4, num_pages=3)
    scores = case.scores(Kernels.REFERENCE)
    for t, seen in enumerate(case.visible):
        for c in range(seen):
            page = case.table.pages_BC[t % 2, c // 4]
            key = case.keys[page, c % 4]
            want = sum(case.weights_TJ[t, j] * (case.q_TJD[t, j] @ key).clamp(min=0) for j in range(3))
            torch.testing.assert_close(scores[t, c], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("indexer_dtype", "heads", "dim", "rows_per_page"),
    [("plain", 3, 10, 4), ("plain", 20, 16, 64), ("fp8", 4, 128, 16), ("mxfp4", 4, 32, 16)],
)
@pytest.mark.interpreter
@pytest.mark.usefixtures("nan_empty")
def test_kernel_equals_the_reference(indexer_dtype, heads, dim, rows_per_page):
    visible = [0, 5, 3 * rows_per_page, 3 * rows_per_page - 2]
    case = Case(indexer_dtype, visible, heads=heads, dim=dim, rows_per_page=rows_per_page, num_pages=3)
    want, got = case.scores(Kernels.REFERENCE), case.scores(Kernels.TRITON)
    assert got.shape == (4, case.num_columns) and got.dtype == torch.float32
    torch.testing.assert_close(case.seen(got), case.seen(want), atol=1e-4, rtol=1e-4)
    # Tokens that see few enough rows may be skipped, others are not touched by that.
    torch.testing.assert_close(
        case.seen(case.scores(Kernels.TRITON, topk=5), 5), case.seen(want, 5), atol=1e-4, rtol=1e-4
    )


def test_without_its_conditions_deep_gemm_is_not_chosen():
    fp8 = index_rows("fp8", dim=128, rows_per_page=64, plain_dtype=torch.bfloat16)
    assert implementation(fp8, 64, CPU, Kernels.REFERENCE) == "reference"
    assert implementation(fp8, 64, CPU, Kernels.TRITON) == "triton"
    assert implementation(fp8, 64, CPU, Kernels.FLASH_MLA) == "triton"


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("indexer_dtype", "heads", "dtype", "tolerance"),
    [
        ("plain", 64, torch.bfloat16, 1e-4),
        ("fp8", 64, torch.bfloat16, 1e-4),
        ("mxfp4", 32, torch.bfloat16, 1e-4),
        ("plain", 32, torch.float32, 1e-5),
    ],
)
def test_gpu_kernel_equals_the_reference_and_itself_alone(indexer_dtype, heads, dtype, tolerance):
    case = Case(
        indexer_dtype, [1280, 700, 0, 64, 65], heads=heads, dim=128, rows_per_page=64, num_pages=20, dtype=dtype,
        device=torch.device("cuda"),
    )  # fmt: skip
    got = case.scores(Kernels.TRITON)
    assert relative_error(case.seen(got), case.seen(case.scores(Kernels.REFERENCE))) < tolerance
    alone = case.scores(Kernels.TRITON, some=slice(0, 1))
    assert torch.equal(alone[0], got[0])


@pytest.mark.gpu
def test_gpu_deep_gemm_equals_the_reference():
    pytest.importorskip("deep_gemm")
    device = torch.device("cuda")
    visible = [1280, 700, 0, 64, 65]
    case = Case("fp8", visible, heads=64, dim=128, rows_per_page=64, num_pages=20, dtype=torch.bfloat16, device=device)
    if implementation(case.rows, 64, device, Kernels.FLASH_MLA) != "deep_gemm":
        pytest.skip("DeepGEMM cannot compile here")
    got = case.scores(Kernels.FLASH_MLA)
    assert relative_error(case.seen(got), case.seen(case.scores(Kernels.REFERENCE))) < 4e-3
