"""Scheduler: which requests take part in the next pass, with pages for it; host integers only.

Policy. Requests are served in order of arrival. Every running request that is past its prompt decodes in every
round; prompts share the rest of the token budget, oldest first. A request is admitted when a row is free and
the pages of its whole known text would fit. When pages run out the youngest running request is preempted: it
loses its pages and computes its prefix again later.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.cache.allocator import CacheManager, Reservation
from specdec.cache.sizing import draft_reach
from specdec.layout import RoundLayout
from specdec.request import LiveRequest


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one pass in packed order.

    requests   [B] prompt chunks first, then decode rows
    layout     their rows, positions and lengths; its logit rows belong to the emitting requests
    emitting   batch indices of the requests that get tokens, ascending: last prompt chunks and decode rows
    widths     logit rows of each emitting request: 1, or 1 + drafted
    preempted  rows whose requests lost their pages to this pass
    """

    requests: tuple[LiveRequest, ...]
    layout: RoundLayout
    emitting: tuple[int, ...]
    widths: tuple[int, ...]
    preempted: tuple[int, ...]

    def is_chunk(self, index: int) -> bool:
        """Whether the request at this batch index runs a prompt chunk."""
        return index < self.layout.num_prefill_reqs


def make_batch(
    chunks: Sequence[tuple[LiveRequest, int]], decodes: Sequence[LiveRequest], preempted: Sequence[int] = ()
) -> Batch:
    """Lay out prompt chunks (with their token counts), then decode rows with their drafts."""
    requests = (*(live for live, _ in chunks), *decodes)
    widths = [1 + len(live.draft) for live in decodes]
    query_lens = (*(num_tokens for _, num_tokens in chunks), *widths)
    num_chunks, num_chunk_tokens = len(chunks), sum(query_lens[: len(chunks)])
    # All rows of decode rows are judged, and the last one of a prompt's last chunk.
    last_rows = _last_rows(chunks)
    has_trees = any(live.draft_tree is not None for live in decodes)
    layout = RoundLayout(
        rows=tuple([live.row for live in requests]),
        start_positions=tuple([live.num_computed for live in requests]),
        query_lens=query_lens,
        num_prefill_reqs=num_chunks,
        logit_rows=(*last_rows.values(), *range(num_chunk_tokens, num_chunk_tokens + sum(widths))),
        trees=(*([None] * num_chunks), *(live.draft_tree for live in decodes)) if has_trees else (),
    )
    return Batch(
        requests=requests,
        layout=layout,
        emitting=(*last_rows, *range(num_chunks, len(requests))),
        widths=(*([1] * len(last_rows)), *widths),
        preempted=tuple(preempted),
    )


def _last_rows(chunks: Sequence[tuple[LiveRequest, int]]) -> dict[int, int]:
    """Batch index -> last packed row, of the chunks after which their request gets its first token."""
    last_rows, end = {}, 0
    for index, (live, length) in enumerate(chunks):
        end += length
        if not live.num_output and live.num_computed + length >= live.num_prompt:
            last_rows[index] = end - 1
    return last_rows


class Scheduler:
    """Owns the queue of waiting requests and the list of running ones.

    max_batch         rows, so the most requests that run at the same time
    prefill_chunk     most prompt tokens of a pass
    max_pass_tokens   most tokens of a pass, or None without a limit
    num_draft_tokens  K, the most tokens that a drafter proposes per request
    """

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_batch: int,
        prefill_chunk: int,
        max_pass_tokens: int | None,
        num_draft_tokens: int,
    ) -> None:
        self.waiting: deque[LiveRequest] = deque()
        self.running: list[LiveRequest] = []
        self._cache = cache
        self._prefill_chunk = prefill_chunk
        self._max_pass_tokens = max_pass_tokens
        self._num_draft_tokens = num_draft_tokens
        # Taken from the end, so the lowest row goes first.
        self._free_rows = list(range(max_batch - 1, -1, -1))

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, live: LiveRequest) -> None:
        """Queue a request behind all others."""
        self.waiting.append(live)

    def select(self) -> Batch | None:
        """Choose the requests of the next pass and reserve their pages; None when there is no work."""
        budget = self._prompt_budget()
        chunks: list[tuple[LiveRequest, int]] = []
        decodes: list[LiveRequest] = []
        preempted: list[int] = []
        index = 0
        if self._reserve_decodes():
            index, decodes = len(self.running), list(self.running)
        # Preemption shortens the list from its end while it is walked.
        while index < len(self.running):
            live = self.running[index]
            index += 1
            num_tokens = 0
            if live.is_prefilling:
                num_tokens = min(budget, live.prefill_end - live.num_computed)
                if num_tokens == 0:
                    continue
            if not self._make_room(live, self._reservation(live, live.row, num_tokens), preempted):
                break
            if num_tokens:
                chunks.append((live, num_tokens))
                budget -= num_tokens
            else:
                decodes.append(live)
        if not preempted:
            self._admit(budget, chunks)
        if not chunks and not decodes:
            assert not self.has_work, "a lone request always finds its pages"
            return None
        return make_batch(chunks, decodes, preempted)

    def settle(self, batch: Batch) -> list[LiveRequest]:
        """After a pass: give back what its requests do not need; the requests that finished, in batch order."""
        finished, ends = [], []
        for live in batch.requests:
            if live.finish_reason is not None:
                self._give_back(live)
                finished.append(live)
            elif live.is_prefilling:
                self._cache.release_skipped(live.row, live.num_computed)
            else:
                ends.append((live.row, live.num_computed))
        self._cache.roll_back_rows(ends)
        return finished

    def check_integrity(self) -> None:
        """Pages and rows are conserved. Raises AssertionError otherwise; linear in the number of pages."""
        self._cache.check_integrity()
        rows = [live.row for live in self.running]
        assert len({*rows, *self._free_rows}) == len(rows) + len(self._free_rows), "a row is used twice"
        if not rows:
            used = {name: pages.num_used for name, pages in self._cache.allocators.items() if pages.num_used}
            assert not used, f"pages leak without a running request: {used}"

    def _prompt_budget(self) -> int:
        if self._max_pass_tokens is None:
            return self._prefill_chunk
        decode_tokens = sum(1 + len(live.draft) for live in self.running if not live.is_prefilling)
        return min(self._prefill_chunk, self._max_pass_tokens - decode_tokens)

    def _reserve_decodes(self) -> bool:
        """Reserve for all running requests at once, if all are past their prompts and nobody has to give way."""
        if any(live.is_prefilling for live in self.running):
            return False
        return self._cache.try_reserve([self._reservation(live, live.row, 0) for live in self.running])

    def _make_room(self, live: LiveRequest, reservation: Reservation, preempted: list[int]) -> bool:
        """Reserve, preempting from the youngest on; False when ``live`` itself had to go."""
        while not self._cache.try_reserve([reservation]):
            youngest = self.running[-1]
            preempted.append(youngest.row)
            self._give_back(youngest)
            youngest.preempt()
            self.waiting.appendleft(youngest)
            if youngest is live:
                return False
        return True

    def _reservation(self, live: LiveRequest, row: int, num_chunk_tokens: int) -> Reservation:
        """Pages of a prompt chunk on ``row`` or, past the prompt, of a decode row and the draft after it.

        No draft is so long that its request could exceed ``max_tokens``, so nothing beyond that is reserved.
        """
        start, num_drafts = live.num_computed, self._num_draft_tokens
        if not live.is_prefilling:
            width = 1 + len(live.draft)
            num_drafts = min(num_drafts, live.max_tokens - start - width + 1)
            return self._cache.decode(row, start, width=width, num_draft_tokens=num_drafts)
        end = start + num_chunk_tokens
        extra = min(draft_reach(num_drafts), live.max_tokens - end) if end == live.prefill_end else 0
        return self._cache.chunk(row, start, num_chunk_tokens, extra=extra)

    def _admit(self, budget: int, chunks: list[tuple[LiveRequest, int]]) -> None:
        while self.waiting and self._free_rows and budget > 0:
            live, row = self.waiting[0], self._free_rows[-1]
            num_tokens = min(budget, live.prefill_end)
            reservation = self._reservation(live, row, num_tokens)
            if not (self._fits_whole(live) and self._cache.try_reserve([reservation])):
                return
            self.waiting.popleft()
            self._free_rows.pop()
            live.row = row
            self.running.append(live)
            chunks.append((live, num_tokens))
            budget -= num_tokens

    def _fits_whole(self, live: LiveRequest) -> bool:
        """Whether the free pages of the full-history groups hold all known tokens and the next one."""
        num_free = self._cache.num_free
        return all(
            spec.is_sliding or spec.pages_for(len(live.tokens) + 1) <= num_free[spec.group_id]
            for spec in self._cache.specs
        )

    def _give_back(self, live: LiveRequest) -> None:
        self.running.remove(live)
        self._cache.release(live.row)
        self._free_rows.append(live.row)
