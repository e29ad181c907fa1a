"""How the indexer scores of a prompt pass are cut to fit its workspace; host integers and CPU tensors only.

For serving engines with prompts that do not fit; the engine here cuts prompts before a pass (``engine.prefill_chunk``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.checks import integer, positive_int
from specdec.errors import MetadataError

LOGIT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillChunk:
    """Some query rows of some consecutive requests, scored against all compressed rows of those requests.

    req_start, req_end      requests of the group that is gathered together
    query_start, query_end  query rows, counted from the group's first query
    token_start, token_end  the same rows as packed tokens of the pass
    num_rows                compressed rows gathered for the group
    skip_gather             the keys are those of the chunk before; only the first chunk of a group gathers
    """

    req_start: int
    req_end: int
    query_start: int
    query_end: int
    token_start: int
    token_end: int
    num_rows: int
    skip_gather: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkRows:
    """Which gathered rows each query of a chunk sees; int32 CPU tensors.

    cumulative_R1  [R + 1] exclusive prefix sum of the compressed rows per request of the group
    starts_Q       [Q] first gathered row of the query's request
    ends_Q         [Q] one past the last row that the query sees
    """

    cumulative_R1: torch.Tensor
    starts_Q: torch.Tensor
    ends_Q: torch.Tensor

    @property
    def lens_Q(self) -> torch.Tensor:
        """[Q] rows that each query sees."""
        return self.ends_Q - self.starts_Q

    @property
    def max_len(self) -> int:
        """Most rows that any query sees (host value)."""
        return int(self.lens_Q.max()) if self.lens_Q.numel() else 0


def prefill_chunks(
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    ratio: int,
    workspace_rows: int,
    max_logits_bytes: int,
) -> tuple[PrefillChunk, ...]:
    """Cut a prompt pass so that a chunk's keys and fp32 logits fit.

    Whole requests are grouped while their compressed rows fit ``workspace_rows`` and all their logits fit
    ``max_logits_bytes``; a request that does not fit is alone. The query rows of a group are then split into
    pieces whose logits fit, of at least one row. Groups without queries are left out; a group without
    compressed rows is one piece. Raises MetadataError when the lengths contradict each other.
    """
    positive_int("ratio", ratio)
    integer("workspace_rows", workspace_rows, low=0)
    integer("max_logits_bytes", max_logits_bytes, low=0)
    if len(seq_lens) != len(query_lens) or any(q > s or q < 0 for s, q in zip(seq_lens, query_lens, strict=False)):
        raise MetadataError(f"seq_lens {tuple(seq_lens)} do not fit query_lens {tuple(query_lens)}")
    rows = [length // ratio for length in seq_lens]
    max_logits = max_logits_bytes // LOGIT_BYTES
    chunks: list[PrefillChunk] = []
    start, token = 0, 0
    while start < len(rows):
        end = _group_end(rows, query_lens, start, workspace_rows, max_logits)
        chunks += _pieces(start, end, token, sum(query_lens[start:end]), sum(rows[start:end]), max_logits)
        token += sum(query_lens[start:end])
        start = end
    return tuple(chunks)


def _group_end(rows: Sequence[int], query_lens: Sequence[int], start: int, workspace_rows: int, max_logits: int) -> int:
    """One past the last request that fits into a group beginning at ``start``; at least one request."""
    num_rows = num_queries = 0
    for end in range(start, len(rows)):
        num_rows += rows[end]
        num_queries += query_lens[end]
        if num_rows > workspace_rows or num_rows * num_queries > max_logits:
            return max(end, start + 1)
    return len(rows)


def _pieces(
    req_start: int, req_end: int, token: int, num_queries: int, num_rows: int, max_logits: int
) -> list[PrefillChunk]:
    """Pieces of one group whose first query is packed token ``token``."""
    step = max(1, max_logits // num_rows if num_rows else num_queries)
    return [
        PrefillChunk(
            req_start=req_start,
            req_end=req_end,
            query_start=first,
            query_end=min(first + step, num_queries),
            token_start=token + first,
            token_end=token + min(first + step, num_queries),
            num_rows=num_rows,
            skip_gather=first > 0,
        )
        for first in range(0, num_queries, step)
    ]


def chunk_rows(chunk: PrefillChunk, seq_lens: Sequence[int], query_lens: Sequence[int], *, ratio: int) -> ChunkRows:
    """Row ranges of the queries of ``chunk``; the lengths are those of the whole pass."""
    group = slice(chunk.req_start, chunk.req_end)
    seq = torch.tensor(seq_lens[group], dtype=torch.int64)
    num = torch.tensor(query_lens[group], dtype=torch.int64)
    cumulative = torch.nn.functional.pad((seq // ratio).cumsum(0), (1, 0))
    reqs = torch.arange(len(num)).repeat_interleave(num)
    first_queries = num.cumsum(0) - num
    positions = (seq - num - first_queries)[reqs] + torch.arange(len(reqs))
    starts = cumulative[reqs]
    queries = slice(chunk.query_start, chunk.query_end)
    return ChunkRows(
        cumulative_R1=cumulative.to(torch.int32),
        starts_Q=starts[queries].to(torch.int32),
        ends_Q=(starts + (positions + 1) // ratio)[queries].to(torch.int32),
    )
