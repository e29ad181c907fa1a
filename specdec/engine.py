"""Engine: rounds of speculative decoding over a batch that changes; knows no model, no drafter and no rule.

``run_round`` is the whole mechanism: schedule and reserve pages, run the round eagerly or as a recording (target pass,
judge, commit, propose), roll back.
"""

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

import torch

from specdec.admission import Admission
from specdec.api import CacheGroupSpec, Drafter, Target, Verifier
from specdec.cache.allocator import CacheManager
from specdec.cache.tables import BlockTables
from specdec.engine_config import EngineConfig, plan_cache
from specdec.errors import ConfigError, MetadataError
from specdec.noise import VocabularyNoise
from specdec.records import RoundRecord, request_output, round_record, step_row
from specdec.request import LiveRequest, Request, RequestOutput
from specdec.rounds.eager import EagerRounds
from specdec.rounds.execution import Execution, ExecutionTally, choose_graphs
from specdec.rounds.parts import RoundParts, RoundResult
from specdec.rounds.recorded import RecordedRounds
from specdec.rounds.steps import Committed, Drafted
from specdec.scheduler import Batch, Scheduler
from specdec.trees.support import check_trees

__all__ = ["Engine", "EngineConfig", "RoundRecord"]


class Engine:
    """Continuous batching with chunked prompts, ragged acceptance and preemption by recompute.

    target        model that verifies
    drafter       proposes tokens
    verifier      rule that decides which are kept
    eos_ids       ids that end a sequence; may be empty
    detokenize    token ids -> text, for stop strings and the text of outputs
    bos_id        begin-of-sequence id that stands for an empty prompt, or None
    draft_groups  cache groups that the draft model of the drafter writes

    Raises ConfigError when a drafter with a draft model comes without its cache groups, when a group is unknown
    to the target, when a full batch is wider than ``fixed_rows`` under ``batch_invariant``, or when rounds are to be
    recorded and cannot be; UnsupportedError when the drafter proposes trees and target or verifier take none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        config: EngineConfig,
        eos_ids: Collection[int] = (),
        detokenize: Callable[[Sequence[int]], str] | None = None,
        *,
        bos_id: int | None = None,
        draft_groups: Collection[CacheGroupSpec] = (),
    ) -> None:
        if drafter.needs.draft_backend and not draft_groups:
            raise ConfigError("the drafter runs a draft model, so the engine needs its cache groups (draft_groups)")
        config.check_width(drafter.num_draft_tokens)
        check_trees(target, drafter, verifier, config)
        self.config = config
        self.max_context = config.context_limit(target.max_context)
        self.rounds: list[RoundRecord] = []
        self._drafter = drafter
        self._drafted: Drafted | None = None
        self._finished: list[tuple[LiveRequest, float]] = []
        self._unwritten: tuple[RoundRecord, Sequence[Committed], float] | None = None
        self._in_round = False
        self._live_ids: set[tuple[str, int]] = set()
        self.cache_plan = plan_cache(
            target.cache_groups,
            config,
            max_context=self.max_context,
            num_draft_tokens=drafter.num_draft_tokens,
            draft_groups=[spec.group_id for spec in draft_groups],
        )
        plan = self.cache_plan
        self._cache = CacheManager(
            plan.specs, plan.num_pages, max_rows=config.max_batch, draft_groups=plan.draft_groups
        )
        self._tables = BlockTables(plan.specs, plan.columns, max_rows=config.max_batch, device=target.device)
        self._scheduler = Scheduler(
            self._cache,
            max_batch=config.max_batch,
            prefill_chunk=config.max_chunk_tokens,
            max_pass_tokens=config.max_pass_tokens,
            num_draft_tokens=drafter.num_draft_tokens,
        )
        self._admission = Admission(
            vocab_size=target.vocab_size,
            max_context=self.max_context,
            plan=plan,
            eos_ids=frozenset(eos_ids),
            detokenize=detokenize,
            bos_id=bos_id,
            run_seed=config.seed,
            live_ids=self._live_ids,
        )
        noise = VocabularyNoise(target.vocab_size, device=target.device)
        parts = RoundParts(
            target=target, drafter=drafter, verifier=verifier, noise=noise, record_probs=config.record_probs
        )
        choice = choose_graphs(config, target)
        self._tally = ExecutionTally(choice, kernels=config.kernels or "reference")
        self._eager = EagerRounds(parts)
        self._recorded: RecordedRounds | None = None
        if choice.enabled:
            self._recorded = RecordedRounds(parts, self._tables, self._eager, sizes=config.graph_sizes)

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises WorkloadError for a prompt that cannot be run and CapacityError for a request that no number of
        waiting rounds could serve.
        """
        live = self._admission.admit(request)
        self._live_ids.add((request.request_id, request.turn))
        self._scheduler.add(live)

    @property
    def execution(self) -> Execution:
        """How the rounds so far ran."""
        return self._tally.report(() if self._recorded is None else self._recorded.keys)

    @property
    def recorded_tensors(self) -> tuple[torch.Tensor, ...]:
        """Every tensor that recordings read and rounds overwrite; their addresses never change."""
        return () if self._recorded is None else self._recorded.tensors

    @torch.no_grad()
    def record_ahead(self) -> None:
        """Record ahead of time what the unfinished requests need, so that no round pays for it.

        A kind of batch that this does not foresee is recorded in its first round. Raises CapacityError when the
        device has no memory for a recording.
        """
        requests = (*self._scheduler.running, *self._scheduler.waiting)
        if self._recorded is not None and requests:
            self._recorded.record_ahead(requests)

    def run(self) -> list[RequestOutput]:
        """Run rounds until no request is left; the outputs of all requests that finished, in order of finishing."""
        while self.has_work:
            self.run_round()
        return self.take_outputs()

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of the requests that finished since the last call; their text is made here, not in the rounds."""
        if not self._finished:
            # The rows of the last round are left to the next one, which writes them while the device works.
            return []
        self._write_rows()
        finished, self._finished = self._finished, []
        return [request_output(live, ended_s=ended_s) for live, ended_s in finished]

    @torch.no_grad()
    def run_round(self) -> RoundRecord | None:
        """One pass of the target and what follows from it; None when there is no work.

        Raises MetadataError after a round that an error or an interrupt broke off: tokens, counts and draft laws may be
        those of half a round. ``take_outputs`` still gives what had finished before it.
        """
        if self._in_round:
            raise MetadataError("a round of this engine was broken off and cannot be continued: make a new engine")
        self._in_round = True
        record = self._whole_round()
        self._in_round = False
        return record

    def _whole_round(self) -> RoundRecord | None:
        started = perf_counter()
        batch = self._scheduler.select()
        if batch is None:
            return None
        self._prepare(batch, started)
        result = self._run(batch)
        self._drafted = result.drafted
        finished = self._scheduler.settle(batch)
        ended = perf_counter()
        record = round_record(
            batch,
            result.committed,
            number=len(self.rounds),
            total_s=ended - started,
            verify_s=result.verify_s,
            draft_s=result.draft_s,
        )
        self._tally.add(result, total_s=ended - started, has_prompts=record.num_prompt_tokens > 0)
        self.rounds.append(record)
        self._unwritten = record, result.committed, ended
        self._let_go(finished, ended)
        return record

    def _run(self, batch: Batch) -> RoundResult:
        """The round as a recording if there can be one, else eagerly."""
        if self._recorded is not None and self._recorded.takes(batch):
            return self._recorded.run(batch, self._drafted, meanwhile=self._write_rows)
        self._write_rows()
        return self._eager.run(batch, self._tables.view(batch.layout.rows), self._drafted)

    def check_integrity(self) -> None:
        """No page or row is lost or used twice. Raises AssertionError otherwise; for tests and debugging."""
        self._scheduler.check_integrity()

    def _prepare(self, batch: Batch, started_s: float) -> None:
        """Tell drafter and block tables what the schedule changed."""
        if batch.preempted:
            self._drafter.forget(batch.preempted)
        for live in batch.requests[: batch.layout.num_prefill_reqs]:
            if live.started_s is None:
                live.started_s = started_s
        self._tables.write(self._cache.take_changes())

    def _write_rows(self) -> None:
        """Write the step rows of the last round, unless that was done; nothing but outputs reads them."""
        if self._unwritten is None:
            return
        (record, committed, ended_s), self._unwritten = self._unwritten, None
        for gain in committed:
            if gain.is_step:
                gain.live.steps.append(step_row(gain, record))
            else:
                gain.live.first_token_s = ended_s

    def _let_go(self, finished: Sequence[LiveRequest], ended_s: float) -> None:
        """Keep what the round finished for ``take_outputs``, and forget it everywhere else."""
        for live in finished:
            self._finished.append((live, ended_s))
            self._live_ids.remove((live.request.request_id, live.request.turn))
        if finished:
            self._drafter.forget([live.row for live in finished])
