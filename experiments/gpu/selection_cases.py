"""Indexer scores, selection of rows and the choice of tokens, as kernel cases of any context."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.index_scores import implementation, index_scores
from backends.deepseek_v4.ops.select_rows import select_rows
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from backends.deepseek_v4.rows.choose import index_rows
from backends.deepseek_v4.rows.format import IndexRowFormat
from experiments.gpu.kernel_case import KernelCase, copies_for, dense
from experiments.gpu.worlds import fill_rows
from specdec.api import GroupTable
from specdec.noise import VocabularyNoise
from specdec.ops.choose import choose

INDEX_DIM = 128
# Rows that are made; further ones are copies of them.
MADE_ROWS = 1 << 17
MOST_COPIES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """T tokens, each of a request of its own, at the end of ``context`` positions.

    topk   rows that a token attends
    heads  of the indexer
    """

    tokens: int
    context: int
    topk: int
    heads: int
    device: torch.device
    dtype: torch.dtype

    @property
    def visible(self) -> int:
        """Compressed rows of a request."""
        return self.context // AttentionKind.CSA.ratio

    @property
    def needs_scores(self) -> bool:
        """Whether a token sees more rows than it attends."""
        return self.visible > self.topk

    def indices(self) -> PassIndices:
        """What scoring and selection read of a pass, and empty lists otherwise."""
        device, tokens = self.device, self.tokens
        nothing = torch.zeros(tokens, dtype=torch.int32, device=device)
        empty_TK = torch.full((tokens, 64), -1, dtype=torch.int32, device=device)
        return PassIndices(
            positions_T=torch.full_like(nothing, self.context - 1),
            reqs_T=torch.arange(tokens, dtype=torch.int32, device=device),
            write_slots={},
            entry_slots={},
            visible={AttentionKind.CSA: torch.full_like(nothing, self.visible)},
            window=SlotList(slots_TK=empty_TK, lens_T=nothing),
            hca=None,
        )

    def tables(self, num_copies: int, rows_per_page: int) -> list[GroupTable]:
        """A table of the requests for every copy; no page occurs twice."""
        columns = -(-self.visible // rows_per_page)
        shape = (num_copies, self.tokens, columns)
        pages = 1 + torch.arange(num_copies * self.tokens * columns, dtype=torch.int32, device=self.device)
        return [GroupTable(pages_BC=each) for each in pages.view(shape)]


def score_case(selection: Selection, indexer_dtype: str, kernels: Kernels) -> KernelCase:
    """Scores of every visible row; a token that attends all rows needs none, and then no row is read."""
    csa = AttentionKind.CSA
    rows = index_rows(
        indexer_dtype, dim=INDEX_DIM, rows_per_page=csa.compressed_rows_per_page, plain_dtype=selection.dtype
    )
    tokens, read = selection.tokens, selection.visible if selection.needs_scores else 0
    nbytes = tokens * read * (rows.row_bytes + 4)
    num_copies = copies_for(nbytes, most=MOST_COPIES) if read and selection.device.type == "cuda" else 2
    tables = selection.tables(num_copies, rows.rows_per_page)
    keys = filled(rows, 1 + num_copies * tokens * tables[0].pages_BC.shape[1], selection.device)
    indices = selection.indices()
    q_TJD = torch.randn(tokens, selection.heads, INDEX_DIM, device=selection.device).to(selection.dtype)
    q_TJD = rows.prepare_query(q_TJD).to(selection.dtype).contiguous()
    weights_TJ = torch.randn(tokens, selection.heads, device=selection.device)

    def call(table: GroupTable) -> Callable[[], object]:
        return lambda: index_scores(
            q_TJD,
            weights_TJ,
            keys,
            rows,
            table,
            indices,
            topk=selection.topk,
            num_columns=selection.visible,
            kernels=kernels,
        )

    used = implementation(rows, selection.heads, selection.device, kernels)
    return KernelCase(
        name=f"index_scores, {indexer_dtype} keys, {used}",
        nbytes=nbytes + dense(q_TJD, weights_TJ),
        calls=tuple(map(call, tables)),
    )


def select_case(selection: Selection, kernels: Kernels) -> KernelCase:
    """Selection from random scores, which a step has just written."""
    indices, rows_per_page = selection.indices(), AttentionKind.CSA.compressed_rows_per_page
    (table,) = selection.tables(1, rows_per_page)
    scores_TC = torch.randn(selection.tokens, selection.visible, device=selection.device)

    def call() -> SlotList:
        return select_rows(scores_TC, indices, table, rows_per_page, topk=selection.topk, kernels=kernels)

    found = call()
    read = scores_TC.nbytes if selection.needs_scores else 0
    nbytes = read + found.slots_TK.nbytes
    return KernelCase(name="select_rows", nbytes=nbytes, calls=(call,) * 4)


def filled(rows: IndexRowFormat, num_pages: int, device: torch.device) -> torch.Tensor:
    """A buffer of random rows, of which the first ones are repeated."""
    buffer = rows.allocate(num_pages, device)
    made = max(1, min(num_pages, MADE_ROWS // rows.rows_per_page))
    fill_rows(rows, buffer[:made])
    for first in range(made, num_pages, made):
        count = min(made, num_pages - first)
        buffer[first : first + count].copy_(buffer[:count])
    return buffer


def choose_case(requests: int, width: int, vocab_size: int, device: torch.device) -> KernelCase:
    """The token of every row of a verify pass under noise."""
    noise = VocabularyNoise(vocab_size, device=device)
    nbytes = 4 * requests * width * vocab_size
    num_copies = copies_for(nbytes, most=MOST_COPIES) if device.type == "cuda" else 2
    logits = [4 * torch.randn(requests, width, vocab_size, device=device) for _ in range(num_copies)]
    positions_B = torch.arange(100, 100 + requests, device=device)
    streams_B = torch.arange(requests, device=device)
    inverse_B = torch.full((requests,), 1.25, device=device)
    greedy_B = torch.zeros(requests, dtype=torch.bool, device=device)

    def call(logits_BNV: torch.Tensor) -> Callable[[], object]:
        return lambda: choose(
            logits_BNV,
            positions_B,
            streams_B=streams_B,
            inverse_temperature_B=inverse_B,
            greedy_B=greedy_B,
            noise=noise,
        )

    return KernelCase(
        name=f"choose, {requests} x {width} rows of {vocab_size} ids",
        nbytes=nbytes + noise.words_V.nbytes,
        calls=tuple(map(call, logits)),
    )
