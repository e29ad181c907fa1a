"""Engine: rounds of speculative decoding over a batch that changes; knows no model, no drafter and no rule.

``run_round`` is the whole mechanism: schedule and reserve pages, target pass, judge, commit, propose, roll back.
"""

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

import torch

from specdec.api import CacheGroupSpec, Drafter, DraftInput, Tables, Target, TargetOutput, Verifier
from specdec.cache.allocator import CacheManager
from specdec.cache.tables import BlockTables
from specdec.engine_config import EngineConfig, plan_cache
from specdec.errors import ConfigError, WorkloadError
from specdec.noise import VocabularyNoise, stream_key
from specdec.records import RoundRecord, request_output, round_record, step_row
from specdec.request import LiveRequest, Request, RequestOutput
from specdec.rounds import (
    Committed,
    Drafted,
    Judged,
    block_logits,
    commit,
    draft_input,
    first_positions,
    match_proposal,
    pack_tokens,
    read_verdict,
    take_drafts,
)
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.scheduler import Batch, Scheduler
from specdec.stops import StopChecker

__all__ = ["Engine", "EngineConfig", "RoundRecord"]

MAX_CACHED_SAMPLINGS = 4


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
    to the target, or when a full batch is wider than ``fixed_rows`` under ``batch_invariant``.
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
        self.config = config
        self.max_context = config.context_limit(target.max_context)
        self.rounds: list[RoundRecord] = []
        self._target, self._drafter, self._verifier = target, drafter, verifier
        self._eos_ids, self._detokenize, self._bos_id = frozenset(eos_ids), detokenize, bos_id
        self._noise = VocabularyNoise(target.vocab_size, device=target.device)
        self._samplings: dict[tuple[LiveRequest, ...], BatchSampling] = {}
        self._drafted: Drafted | None = None
        self._finished: list[tuple[LiveRequest, float]] = []
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

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises WorkloadError for a prompt that cannot be run and CapacityError for a request that no number of
        waiting rounds could serve.
        """
        prompt = self._checked_prompt(request)
        params = request.sampling
        max_output = self.max_context - len(prompt)
        max_tokens = len(prompt) + min(params.max_new_tokens, max_output)
        self.cache_plan.check_servable(request.request_id, max_tokens)
        self._live_ids.add((request.request_id, request.turn))
        stops = StopChecker(params, eos_ids=self._eos_ids, max_output=max_output, detokenize=self._detokenize)
        # Turns of one conversation are requests of their own, with noise of their own.
        name = f"{request.request_id} turn {request.turn}"
        self._scheduler.add(
            LiveRequest(
                request=request,
                stops=stops,
                stream=stream_key(params.seed, request_id=name, run_seed=self.config.seed),
                tokens=list(prompt),
                num_prompt=len(prompt),
                max_tokens=max_tokens,
                prefill_end=len(prompt),
            )
        )

    def run(self) -> list[RequestOutput]:
        """Run rounds until no request is left; the outputs of all requests that finished, in order of finishing."""
        while self.has_work:
            self.run_round()
        return self.take_outputs()

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of the requests that finished since the last call; their text is made here, not in the rounds."""
        finished, self._finished = self._finished, []
        return [request_output(live, ended_s=ended_s) for live, ended_s in finished]

    @torch.no_grad()
    def run_round(self) -> RoundRecord | None:
        """One pass of the target and what follows from it; None when there is no work."""
        started = perf_counter()
        batch = self._scheduler.select()
        if batch is None:
            return None
        tables = self._prepare(batch, started)
        tokens_T = pack_tokens(batch, self._target.device)

        verify_started = perf_counter()
        output = self._target.forward(batch.layout, tokens_T, tables, hidden_layers=self._drafter.needs.hidden_layers)
        judged = self._judge(batch, output)
        verify_s = perf_counter() - verify_started

        committed = commit(batch, judged)
        inputs = self._draft_input(batch, output, tables)

        draft_started = perf_counter()
        self._drafted = self._propose(batch, inputs)
        draft_s = perf_counter() - draft_started

        finished = self._scheduler.settle(batch)
        ended = perf_counter()
        record = round_record(
            batch,
            committed,
            number=len(self.rounds),
            total_s=ended - started,
            verify_s=verify_s,
            draft_s=draft_s,
        )
        self._record(record, committed, finished, ended)
        return record

    def check_integrity(self) -> None:
        """No page or row is lost or used twice. Raises AssertionError otherwise; for tests and debugging."""
        self._scheduler.check_integrity()

    def _checked_prompt(self, request: Request) -> tuple[int, ...]:
        """The prompt to run; raises WorkloadError for a request that cannot be run at all."""
        name = f"request {request.request_id}"
        if (request.request_id, request.turn) in self._live_ids:
            raise WorkloadError(f"{name} turn {request.turn} is not finished yet; live request ids must be unique")
        prompt = request.prompt
        if not prompt:
            if self._bos_id is None:
                raise WorkloadError(f"{name}: the prompt is empty and the target has no begin-of-sequence id")
            prompt = (self._bos_id,)
        if len(prompt) >= self.max_context:
            raise WorkloadError(
                f"{name}: the prompt has {len(prompt)} tokens and the context limit is {self.max_context}, "
                f"which leaves no room for output (conf: engine.max_context)"
            )
        if not 0 <= min(prompt) <= max(prompt) < self._target.vocab_size:
            raise WorkloadError(
                f"{name}: prompt token ids must lie in 0..{self._target.vocab_size - 1}, "
                f"got {min(prompt)}..{max(prompt)}"
            )
        beyond = [token for token in request.sampling.stop_token_ids if token >= self._target.vocab_size]
        if beyond:
            raise WorkloadError(
                f"{name}: stop_token_ids must lie in 0..{self._target.vocab_size - 1}, since the vocabulary has "
                f"{self._target.vocab_size} tokens, got {beyond[0]} (conf: sampling.stop_token_ids)"
            )
        if request.sampling.stop and self._detokenize is None:
            raise WorkloadError(f"{name}: stop strings need a tokenizer, the target has none")
        return prompt

    def _prepare(self, batch: Batch, started_s: float) -> Tables:
        """Tell drafter and block tables what the schedule changed; the tables of the pass."""
        if batch.preempted:
            self._drafter.forget(batch.preempted)
        for live in batch.requests[: batch.layout.num_prefill_reqs]:
            if live.started_s is None:
                live.started_s = started_s
        self._tables.write(self._cache.take_changes())
        return self._tables.view(batch.layout.rows)

    def _judge(self, batch: Batch, output: TargetOutput) -> list[Judged]:
        """The verifier's decision for the emitting requests, on the host."""
        if not batch.emitting:
            return []
        verdict = self._verifier.judge(
            block_logits(batch, output.logits_RV),
            match_proposal(batch, self._drafted),
            self._sampling(tuple(batch.requests[index] for index in batch.emitting)),
            first_positions(batch, self._target.device),
        )
        return read_verdict(batch, verdict)

    def _draft_input(self, batch: Batch, output: TargetOutput, tables: Tables) -> DraftInput | None:
        """What the drafter is shown of this pass; None when it has nothing to do with it."""
        drafter = self._drafter
        if drafter.num_draft_tokens == 0:
            return None
        inputs = draft_input(
            batch,
            output,
            num_draft_tokens=drafter.num_draft_tokens,
            with_histories=drafter.needs.history,
            sampling=self._sampling(batch.requests),
            tables=tables,
            device=self._target.device,
        )
        sees_all = drafter.needs.draft_backend or bool(drafter.needs.hidden_layers)
        return inputs if sees_all or any(inputs.wanted_B) else None

    def _propose(self, batch: Batch, inputs: DraftInput | None) -> Drafted | None:
        if inputs is None:
            return None
        proposal = self._drafter.propose(inputs)
        return take_drafts(batch, proposal, inputs.max_draft_B, vocab_size=self._target.vocab_size)

    def _sampling(self, requests: tuple[LiveRequest, ...]) -> BatchSampling:
        """How ``requests`` sample; made once per composition of the batch."""
        sampling = self._samplings.get(requests)
        if sampling is None:
            if len(self._samplings) >= MAX_CACHED_SAMPLINGS:
                self._samplings.clear()
            sampling = self._samplings[requests] = BatchSampling(
                [sampling_request(live) for live in requests],
                noise=self._noise,
                coupling=self._verifier.coupling,
            )
        return sampling

    def _record(
        self,
        record: RoundRecord,
        committed: Sequence[Committed],
        finished: Sequence[LiveRequest],
        ended_s: float,
    ) -> None:
        """Keep the rows of the round and let go of the requests that it finished."""
        self.rounds.append(record)
        for gain in committed:
            if gain.is_step:
                gain.live.steps.append(step_row(gain, record))
            else:
                gain.live.first_token_s = ended_s
        for live in finished:
            self._finished.append((live, ended_s))
            self._live_ids.remove((live.request.request_id, live.request.turn))
        if finished:
            self._drafter.forget([live.row for live in finished])


def sampling_request(live: LiveRequest) -> SamplingRequest:
    """What sampling needs to know of a live request; shares its growing token list."""
    return SamplingRequest(
        params=live.request.sampling,
        stream=live.stream,
        tokens=live.tokens,
        num_prompt=live.num_prompt,
        stop_ids=live.stops.ending_ids,
    )
