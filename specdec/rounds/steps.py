"""The steps of a round as functions: tensors of a pass from host state, and host values from its results.

Every function takes values and returns a value; only ``commit`` and ``hand_out`` write, and only to the live
requests that they are given. Knows nothing of pages, queues or timing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from specdec.api import DraftInput, Proposal, Tables, TargetOutput, Verdict
from specdec.errors import MetadataError, UnsupportedError
from specdec.request import FinishReason, LiveRequest
from specdec.rounds.proposal_checks import check_form, wrong_law, wrong_laws
from specdec.rounds.token_probs import TokenProbs
from specdec.sampling import BatchSampling
from specdec.scheduler import Batch
from specdec.trees.draft_tree import DraftTree
from specdec.trees.proposals import ordered_trees

FILLER_TOKEN = 0


class Judged(NamedTuple):
    """What the verifier decided for one emitting request, on the host.

    tokens        the committed tokens: accepted drafts and one more
    num_accepted  accepted drafts
    logprobs      of ``tokens``, empty if nobody asked
    overlap       of target and draft laws per drafted position, or None without draft laws
    path          nodes of the accepted path of a tree; empty for a chain
    target_probs, draft_probs  of the drafted tokens, or None if nobody asked or no law is known
    """

    tokens: Sequence[int]
    num_accepted: int
    logprobs: Sequence[float] = ()
    overlap: Sequence[float] | None = None
    path: Sequence[int] = ()
    target_probs: Sequence[float] | None = None
    draft_probs: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedFloats:
    """Floats of a verdict on the host, a line for each emitting request; see ``Judged``. None: there are none."""

    logprobs: Sequence[Sequence[float]] | None = None
    overlap: Sequence[Sequence[float]] | None = None
    target_probs: Sequence[Sequence[float]] | None = None
    draft_probs: Sequence[Sequence[float]] | None = None


class Committed(NamedTuple):
    """What one emitting request gained in a round.

    first_length   known tokens before the round
    drafted        tokens that were verified
    num_accepted   drafted tokens that the rule accepted, before any stop cut them
    emitted        tokens that were added to the request
    is_step        False for the first token after a prompt
    finish_reason  why the request ended with this round, or None
    overlap        see ``Judged``
    tree           shape of ``drafted``; None for a chain
    target_probs, draft_probs  see ``Judged``
    """

    live: LiveRequest
    first_length: int
    drafted: tuple[int, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    is_step: bool
    finish_reason: FinishReason | None
    overlap: Sequence[float] | None
    tree: DraftTree | None = None
    target_probs: Sequence[float] | None = None
    draft_probs: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Drafted:
    """A proposal and a host copy of its ``num_drafted_B``."""

    proposal: Proposal
    counts: tuple[int, ...]


def pack_tokens(batch: Batch, device: torch.device) -> torch.Tensor:
    """Token ids of the pass: prompt slices, then newest token and draft of each decode row; int64 [T]."""
    packed: list[int] = []
    layout = batch.layout
    for index, live in enumerate(batch.requests):
        if batch.is_chunk(index):
            start = live.num_computed
            packed.extend(live.tokens[start : start + layout.query_lens[index]])
        else:
            packed.append(live.tokens[-1])
            packed.extend(live.draft)
    return torch.tensor(packed, dtype=torch.int64, device=device)


def block_logits(batch: Batch, logits_RV: torch.Tensor) -> torch.Tensor:
    """Logits of the emitting requests padded to one width, [B, N, V]; padding repeats a request's last row."""
    width = max(batch.widths)
    if min(batch.widths) == width:
        return logits_RV.reshape(len(batch.widths), width, -1)
    rows, start = [], 0
    for own in batch.widths:
        rows.append([start + min(j, own - 1) for j in range(width)])
        start += own
    return logits_RV[torch.tensor(rows, device=logits_RV.device)]


def first_positions(batch: Batch, device: torch.device) -> torch.Tensor:
    """Position of the first token that each emitting request may get; int64 [B]."""
    lengths = [len(batch.requests[index].tokens) for index in batch.emitting]
    return torch.tensor(lengths, dtype=torch.int64, device=device)


def match_proposal(batch: Batch, drafted: Drafted | None) -> Proposal | None:
    """The last proposal, reordered to the emitting requests; None when nothing is verified, chains without trees."""
    if drafted is None or max(batch.widths) == 1:
        return None
    emitting = [batch.requests[index] for index in batch.emitting]
    counts = tuple(len(live.draft) for live in emitting)
    indices = [live.draft_index if live.draft else 0 for live in emitting]
    proposal = drafted.proposal
    # A drafter may report tokens for requests that wanted none; then the counts differ.
    # A proposal of a recorded round has those of padding requests, too.
    is_whole = len(proposal.tokens_BK) == len(counts) and counts == drafted.counts
    if is_whole and indices == list(range(len(counts))):
        has_shape = proposal.parents_BK is None or batch.layout.has_trees
        return proposal if has_shape else replace(proposal, parents_BK=None)
    index_B = torch.tensor(indices, device=proposal.tokens_BK.device)
    parents_BK = proposal.parents_BK if batch.layout.has_trees else None
    return Proposal(
        tokens_BK=proposal.tokens_BK[index_B],
        num_drafted_B=torch.tensor(counts, dtype=torch.int64, device=index_B.device),
        probs_BKV=None if proposal.probs_BKV is None else proposal.probs_BKV[index_B],
        parents_BK=None if parents_BK is None else parents_BK[index_B],
        sibling_draws=proposal.sibling_draws,
    )


def read_verdict(batch: Batch, verdict: Verdict, probs: TokenProbs | None = None) -> list[Judged]:
    """Bring a verdict to the host in one copy of its integers, and one of each kind of floats that there is."""
    accepted_B1 = verdict.num_accepted_B[:, None]
    path = [] if verdict.path_BK is None else [verdict.path_BK]
    lines = torch.cat([accepted_B1, verdict.tokens_BN, *path], dim=1).tolist()
    floats = JudgedFloats(
        logprobs=_lines_of(verdict.logprobs_BN),
        overlap=_lines_of(verdict.overlap_BK),
        target_probs=None if probs is None else _lines_of(probs.target_BK),
        draft_probs=None if probs is None else _lines_of(probs.draft_BK),
    )
    judged = judged_lines(batch, lines, floats)
    if verdict.path_BK is None:
        return judged
    start = 1 + verdict.tokens_BN.shape[1]
    return [one._replace(path=line[start : start + line[0]]) for one, line in zip(judged, lines, strict=True)]


def _lines_of(values_BX: torch.Tensor | None) -> list[list[float]] | None:
    return None if values_BX is None else values_BX.tolist()


def judged_lines(batch: Batch, lines: Sequence[Sequence[int]], floats: JudgedFloats | None = None) -> list[Judged]:
    """The decision for each emitting request from a line of its number of accepted drafts and its tokens."""
    if floats is None:
        return [Judged(line[1 : line[0] + 2], line[0]) for line in lines]
    return [
        Judged(
            tokens=line[1 : line[0] + 2],
            num_accepted=line[0],
            logprobs=() if floats.logprobs is None else floats.logprobs[b][: line[0] + 1],
            overlap=_of_drafts(floats.overlap, batch, b),
            target_probs=_of_drafts(floats.target_probs, batch, b),
            draft_probs=_of_drafts(floats.draft_probs, batch, b),
        )
        for b, line in enumerate(lines)
    ]


def _of_drafts(values: Sequence[Sequence[float]] | None, batch: Batch, b: int) -> Sequence[float] | None:
    return None if values is None else values[b][: batch.widths[b] - 1]


def commit(batch: Batch, judged: Sequence[Judged]) -> list[Committed]:
    """Advance every request of the pass; tokens go in one by one and nothing goes in after a stop."""
    if not batch.layout.num_prefill_reqs:
        return [_emit(live, one, is_step=True) for live, one in zip(batch.requests, judged, strict=True)]
    committed = []
    results = dict(zip(batch.emitting, judged, strict=True))
    for index, live in enumerate(batch.requests):
        is_chunk = batch.is_chunk(index)
        if is_chunk:
            live.num_computed += batch.layout.query_lens[index]
        if index in results:
            committed.append(_emit(live, results[index], is_step=not is_chunk))
    return committed


def _emit(live: LiveRequest, judged: Judged, *, is_step: bool) -> Committed:
    known, reason = live.tokens, None
    first_length = len(known)
    drafted, live.draft = tuple(live.draft), ()
    tree, live.draft_tree = live.draft_tree, None
    for token in judged.tokens:
        known.append(token)
        reason = live.stops.push(token)
        if reason is not None:
            break
    live.finish_reason = reason
    emitted = tuple(known[first_length:])
    if is_step:
        live.num_computed += len(emitted)
    if judged.logprobs:
        live.logprobs.extend(judged.logprobs[: len(emitted)])
    return Committed(
        live=live,
        first_length=first_length,
        drafted=drafted,
        num_accepted=judged.num_accepted,
        emitted=emitted,
        is_step=is_step,
        finish_reason=reason,
        overlap=judged.overlap,
        tree=tree,
        target_probs=judged.target_probs,
        draft_probs=judged.draft_probs,
    )


def draft_limits(batch: Batch, num_draft_tokens: int) -> tuple[int, ...]:
    """Most tokens that may be drafted for each request after ``commit``; 0 in mid-prompt and at the end."""
    return tuple(
        0 if live.finish_reason is not None or live.is_prefilling else min(num_draft_tokens, live.remaining - 1)
        for live in batch.requests
    )


def draft_input(
    batch: Batch,
    output: TargetOutput,
    *,
    num_draft_tokens: int,
    with_histories: bool,
    sampling: BatchSampling,
    tables: Tables,
    device: torch.device,
) -> DraftInput:
    """What the drafter sees after ``commit``: every row of the pass with the token that follows it."""
    next_tokens: list[int] = []
    ends, num_committed, last_tokens = [], [], []
    limits = draft_limits(batch, num_draft_tokens)
    layout = batch.layout
    for live, start, length in zip(batch.requests, layout.start_positions, layout.query_lens, strict=True):
        end = live.num_computed
        known = live.tokens[start + 1 : start + 1 + length]
        next_tokens.extend(known)
        # Rows of rejected tokens have no successor.
        next_tokens.extend([FILLER_TOKEN] * (length - len(known)))
        ends.append(end)
        num_committed.append(end - start)
        last_tokens.append(live.tokens[end])
    packed_4B = torch.tensor([num_committed, last_tokens, ends, limits], dtype=torch.int64, device=device)
    return DraftInput(
        layout=layout,
        next_tokens_T=torch.tensor(next_tokens, dtype=torch.int64, device=device),
        hidden_TD=output.hidden_TD,
        num_committed_B=packed_4B[0],
        last_tokens_B=packed_4B[1],
        seq_lens_B=packed_4B[2],
        wanted_B=tuple(limit > 0 for limit in limits),
        max_draft_B=limits,
        limits_B=packed_4B[3],
        sampling=sampling.drafting(packed_4B[2] + 1),
        histories=tuple(live.tokens for live in batch.requests) if with_histories else (),
        tables=tables,
    )


def take_drafts(
    batch: Batch,
    proposal: Proposal | None,
    limits: Sequence[int],
    *,
    vocab_size: int,
    device: torch.device,
    trees: bool = False,
) -> Drafted | None:
    """Bring a proposal to the host and hand its tokens to the requests that wanted them.

    trees  whether the drafter declared that it proposes trees

    Raises MetadataError for a proposal that breaks the contract of ``Drafter.propose``, and UnsupportedError
    for a tree that was not declared.
    """
    if proposal is None:
        return None
    check_form(proposal, num_reqs=len(batch.requests), vocab_size=vocab_size, device=device)
    if proposal.parents_BK is not None and not trees:
        raise UnsupportedError("the drafter proposed a tree (parents_BK is given) and does not declare needs.trees")
    shapes: Sequence[DraftTree | None] = ()
    if proposal.parents_BK is not None:
        proposal, shapes = ordered_trees(proposal, limits)
    wrong_B = wrong_laws(proposal)
    last = [] if wrong_B is None else [wrong_B[:, None]]
    lines = torch.cat([proposal.num_drafted_B[:, None], proposal.tokens_BK, *last], dim=1).tolist()
    is_wrong = [False] * len(lines) if wrong_B is None else [line.pop() > 0 for line in lines]
    counts = hand_out(batch, lines, limits, vocab_size=vocab_size)
    for b, (live, limit) in enumerate(zip(batch.requests, limits, strict=True)):
        if limit and is_wrong[b]:
            raise wrong_law(proposal, b, live.request.request_id)
    for live, shape in zip(batch.requests, shapes, strict=False):
        live.draft_tree = shape
    return Drafted(proposal, counts)


def hand_out(
    batch: Batch, lines: Sequence[Sequence[int]], limits: Sequence[int], *, vocab_size: int
) -> tuple[int, ...]:
    """Give each request that wanted one its draft, from a line of its number and its tokens; the numbers.

    Raises MetadataError for a draft that is too long or not of the vocabulary.
    """
    counts = []
    for index, (live, line, limit) in enumerate(zip(batch.requests, lines, limits, strict=True)):
        draft = line[1 : line[0] + 1] if limit else []
        _check_draft(live, draft, limit=limit, num_drafted=line[0], vocab_size=vocab_size)
        live.draft = draft
        live.draft_index = index
        counts.append(line[0])
    return tuple(counts)


def _check_draft(live: LiveRequest, draft: Sequence[int], *, limit: int, num_drafted: int, vocab_size: int) -> None:
    name = live.request.request_id
    if limit and not (len(draft) == num_drafted <= limit):
        raise MetadataError(
            f"request {name}: the drafter proposed {num_drafted} tokens ({len(draft)} given), at most {limit} may be"
        )
    if draft and not (0 <= min(draft) <= max(draft) < vocab_size):
        raise MetadataError(f"request {name}: drafted token ids must lie in 0..{vocab_size - 1}, got {draft}")
