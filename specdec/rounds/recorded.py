"""RecordedRounds: decode rounds as one recording each, from block tables to the drafts of the next round.

A recording holds: one copy of all integers from the host, gather of the block tables, target pass, verification and,
for a drafter that can be recorded, catch-up and draft steps, and one copy of the result to the host. Prompt chunks and
larger batches than recorded are not for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from specdec.api import GraphTarget, TargetOutput
from specdec.cache.tables import BlockTables
from specdec.request import LiveRequest
from specdec.rounds.arena import RoundArena
from specdec.rounds.device_round import DeviceRound, RoundTensors, most_columns, run_device_round
from specdec.rounds.eager import EagerRounds
from specdec.rounds.graphs import GraphKey, GraphRunner
from specdec.rounds.parts import RoundParts, RoundResult, sampling_request
from specdec.rounds.readback import Readback
from specdec.rounds.steps import Drafted, Judged, JudgedFloats, commit, draft_limits, hand_out, judged_lines
from specdec.sampling import BatchSampling, SamplingRequest, SamplingVariant
from specdec.sampling_params import SamplingParams
from specdec.scheduler import Batch


@dataclass(slots=True)
class _SizedSampling:
    """Sampling of a padded batch in tensors that recordings read, and whom it samples for now.

    keys  of the recordings that read them, by tokens per request and whether the verified drafts have laws
    """

    requests: tuple[LiveRequest, ...]
    sampling: BatchSampling
    keys: dict[tuple[int, bool], GraphKey] = field(default_factory=dict)


class RecordedRounds:
    """Records a round per (padded batch, tokens per request, variant) when it is first needed, and replays it.

    Owns every tensor that a recording reads: arenas, sampling and draft laws; each is made once and overwritten.
    """

    def __init__(self, parts: RoundParts, tables: BlockTables, eager: EagerRounds, *, sizes: Sequence[int]) -> None:
        assert isinstance(parts.target, GraphTarget), "a target without forward_packed cannot be recorded"
        self._parts, self._tables, self._eager = parts, tables, eager
        self._sizes = tuple(sorted(sizes))
        self._runner: GraphRunner[DeviceRound] = GraphRunner(parts.target.device)
        self._memory: dict[tuple[int, int], tuple[RoundArena, Readback]] = {}
        self._samplings: dict[tuple[int, SamplingVariant], _SizedSampling] = {}
        self._laws_BKV: torch.Tensor | None = None
        self._num_drafts = parts.drafter.num_draft_tokens
        self._last_variant: tuple[tuple[LiveRequest, ...], SamplingVariant] | None = None

    @property
    def keys(self) -> tuple[GraphKey, ...]:
        """What is recorded."""
        return self._runner.keys

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Every tensor that recordings read and rounds overwrite; for tests of their addresses."""
        arenas = [tensor for arena, _ in self._memory.values() for tensor in arena.tensors]
        samplings = [tensor for sized in self._samplings.values() for tensor in sized.sampling.tensors]
        return (*arenas, *samplings, *([] if self._laws_BKV is None else [self._laws_BKV]))

    def takes(self, batch: Batch) -> bool:
        """Whether ``batch`` is made of decode rows only, without trees, and fits into the recorded sizes."""
        layout = batch.layout
        return not (layout.num_prefill_reqs or layout.has_trees) and layout.num_reqs <= self._sizes[-1]

    def record_ahead(self, requests: Sequence[LiveRequest]) -> None:
        """Record ahead of time what batches of ``requests`` need: of one kind each, and all kinds together."""
        kinds = {self._variant((live,)): (live,) for live in requests}
        kinds.setdefault(self._variant(tuple(requests)), tuple(requests))
        for size in reversed(self._sizes):
            for kind in (kind[:size] for kind in kinds.values()):
                self._ready(self._sized(kind, size), size, 1, has_laws=False)
                if self._num_drafts:
                    has_laws = self._drafts_with_laws(kind)
                    self._ready(self._sized(kind, size), size, self._num_drafts + 1, has_laws=has_laws)

    def run(self, batch: Batch, drafted: Drafted | None, *, meanwhile: Callable[[], None]) -> RoundResult:
        """One round of ``batch``, whose drafts come from ``drafted``.

        meanwhile  what the host has to do while the device works
        """
        started = perf_counter()
        requests = batch.requests
        size = next(size for size in self._sizes if size >= len(requests))
        width = self._num_drafts + 1 if max(batch.widths) > 1 else 1
        laws_BKV = drafted.proposal.probs_BKV if width > 1 and drafted is not None else None
        sized = self._sized(requests, size)
        key = self._ready(sized, size, width, has_laws=laws_BKV is not None)
        if laws_BKV is not None:
            self._place_laws(requests, laws_BKV)
        sized.sampling.follow()
        arena, readback = self._memory[size, width]
        arena.write(requests)
        recorded = self._runner.replay(key)
        launched = perf_counter()
        meanwhile()
        self._runner.wait()
        verified = perf_counter()
        lines, judged = _read(batch, readback, recorded)
        committed = commit(batch, judged)
        sized.sampling.mark_counted()
        drafting = perf_counter()
        proposed = self._take(batch, lines, recorded, width)
        return RoundResult(
            committed=committed,
            drafted=proposed,
            verify_s=verified - started,
            draft_s=perf_counter() - drafting,
            wait_s=verified - launched,
        )

    def _take(self, batch: Batch, lines: Sequence[Sequence[int]], recorded: DeviceRound, width: int) -> Drafted | None:
        """The next drafts: read from the result, or proposed now by a drafter that cannot be recorded."""
        if self._num_drafts == 0:
            return None
        if recorded.proposal is None:
            hidden_TD = recorded.hidden_TD
            if hidden_TD is not None:
                hidden_TD = hidden_TD[torch.tensor(_rows(batch, width), device=hidden_TD.device)]
            output = TargetOutput(logits_RV=recorded.result_BX, hidden_TD=hidden_TD)
            return self._eager.propose(batch, output, self._tables.view(batch.layout.rows))
        lines = [line[1 + width :] for line in lines]
        limits = draft_limits(batch, self._num_drafts)
        counts = hand_out(batch, lines, limits, vocab_size=self._parts.target.vocab_size)
        return Drafted(recorded.proposal, counts)

    def _ready(self, sized: _SizedSampling, size: int, width: int, *, has_laws: bool) -> GraphKey:
        """Key of a recording that exists when this returns."""
        key = sized.keys.get((width, has_laws))
        if key is None:
            key = GraphKey(size, width, f"{sized.sampling.variant}{'+laws' if has_laws else ''}")
            self._record(key, sized.sampling, has_laws=has_laws)
            sized.keys[width, has_laws] = key
        return key

    def _record(self, key: GraphKey, sampling: BatchSampling, *, has_laws: bool) -> None:
        size, width = key.num_reqs, key.tokens_per_request
        if (size, width) not in self._memory:
            device = self._parts.target.device
            arena = RoundArena(size, width, sink_row=self._tables.sink_row, device=device)
            self._memory[size, width] = arena, Readback(size * most_columns(width, self._num_drafts), device=device)
        arena, readback = self._memory[size, width]
        # A padded round writes nothing but the laws, which may be those of drafts about to be verified.
        arena.write(())
        saved = None if self._laws_BKV is None else self._laws_BKV.clone()
        tensors = RoundTensors(arena=arena, sampling=sampling, has_laws=has_laws, laws=self._laws)

        def whole() -> DeviceRound:
            arena.upload()
            recorded = run_device_round(self._parts, self._tables, tensors)
            readback.copy(recorded.result_BX)
            return recorded

        self._runner.record(key, whole)
        # The host writes the arena again: no run of ``whole`` may be left that reads it.
        self._runner.wait()
        if saved is not None:
            self._laws().copy_(saved)

    def _laws(self) -> torch.Tensor:
        """Draft laws float32 [most requests, K, V] between rounds, made when the first draft has one."""
        if self._laws_BKV is None:
            shape = (self._sizes[-1], self._num_drafts, self._parts.target.vocab_size)
            self._laws_BKV = torch.zeros(shape, device=self._parts.target.device)
        return self._laws_BKV

    def _place_laws(self, requests: Sequence[LiveRequest], laws_BKV: torch.Tensor) -> None:
        """Bring the laws of the drafts into the order of ``requests``; they often are there already."""
        own_BKV = self._laws()
        indices = [live.draft_index if live.draft else 0 for live in requests]
        is_own = laws_BKV.data_ptr() == own_BKV.data_ptr()
        if is_own and indices == list(range(len(indices))):
            return
        index_B = torch.tensor(indices, device=laws_BKV.device)
        own_BKV[: len(indices), : laws_BKV.shape[1]] = laws_BKV[index_B]

    def _drafts_with_laws(self, requests: tuple[LiveRequest, ...]) -> bool:
        """Whether drafts of such a batch come with laws, as far as that is known before any was made."""
        return self._laws_BKV is not None and not self._variant(requests).all_greedy

    def _sized(self, requests: tuple[LiveRequest, ...], size: int) -> _SizedSampling:
        """Sampling of ``requests`` padded to ``size``, in the tensors that recordings of its kind read."""
        variant = self._variant(requests)
        sized = self._samplings.get((size, variant))
        if sized is not None and sized.requests == requests:
            return sized
        padding = _padding(all_greedy=variant.all_greedy)
        padded = [*map(sampling_request, requests), *[padding] * (size - len(requests))]
        if sized is None:
            noise, coupling = self._parts.noise, self._parts.verifier.coupling
            sampling = BatchSampling(padded, noise=noise, coupling=coupling, follows=False)
            sized = self._samplings[size, variant] = _SizedSampling(requests, sampling)
            return sized
        sized.sampling.replace(padded)
        sized.requests = requests
        return sized

    def _variant(self, requests: tuple[LiveRequest, ...]) -> SamplingVariant:
        """What decides the operations of a batch; remembered for the last batch."""
        if self._last_variant is None or self._last_variant[0] != requests:
            requests_of = [sampling_request(live) for live in requests]
            self._last_variant = (requests, SamplingVariant.of(requests_of, self._parts.target.vocab_size))
        return self._last_variant[1]


def _padding(*, all_greedy: bool) -> SamplingRequest:
    """Sampling of a padding request: of a kind that changes no variant."""
    return SamplingRequest(
        params=SamplingParams(temperature=0.0 if all_greedy else 1.0), stream=0, tokens=(0,), num_prompt=1
    )


def _rows(batch: Batch, width: int) -> list[int]:
    """Rows of the padded pass that ``batch`` has itself, in packed order."""
    return [b * width + j for b, own in enumerate(batch.widths) for j in range(own)]


def _read(batch: Batch, readback: Readback, recorded: DeviceRound) -> tuple[Sequence[Sequence[int]], list[Judged]]:
    """The integers of each request, and what they and the floats say of the verdict."""
    count, num_columns = len(batch.requests), recorded.num_columns
    lines = readback.integers(count, num_columns, stop=recorded.num_integers)
    if not recorded.floats:
        return lines, judged_lines(batch, lines)
    rows = readback.floats(count, num_columns, start=recorded.num_integers)
    own, start = {}, 0
    for name, size in recorded.floats:
        own[name] = [row[start : start + size] for row in rows]
        start += size
    return lines, judged_lines(batch, lines, JudgedFloats(**own))
