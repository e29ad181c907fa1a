"""Records of what happened: one per round, one per verify step, one per finished request; makes no decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.loops import mark_loops
from specdec.request import LiveRequest, RequestOutput
from specdec.rounds.steps import Committed
from specdec.scheduler import Batch
from specdec.step_row import StepRow

US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """What one round did; times in microseconds.

    num_live           requests of the pass
    num_prompt_tokens  tokens of its prompt chunks
    num_steps          decode rows
    num_emitted        tokens emitted, first tokens after a prompt included
    num_preempted      requests that lost their pages to this pass
    verify_us          target pass and judgement, until the verdict is on the host; of a recorded round the whole
                       recording with the drafting in it, while the host writes the rows of the round before
    draft_us           proposal, until it is on the host, unless the recording has it
    other_us           scheduling, pages, stops and bookkeeping, without what the host does during a recording
    """

    round: int
    num_live: int
    num_prompt_tokens: int
    num_steps: int
    num_emitted: int
    num_preempted: int
    verify_us: float
    draft_us: float
    other_us: float

    @property
    def total_us(self) -> float:
        """All of the round, in microseconds."""
        return self.verify_us + self.draft_us + self.other_us


def round_record(
    batch: Batch,
    committed: Sequence[Committed],
    *,
    number: int,
    total_s: float,
    verify_s: float,
    draft_s: float,
) -> RoundRecord:
    """Record of round ``number``; what was neither verifying nor drafting is ``other``."""
    return RoundRecord(
        round=number,
        num_live=len(batch.requests),
        num_prompt_tokens=batch.layout.num_prefill_tokens,
        num_steps=batch.layout.num_reqs - batch.layout.num_prefill_reqs,
        num_emitted=sum(len(gain.emitted) for gain in committed),
        num_preempted=len(batch.preempted),
        verify_us=verify_s * US_PER_S,
        draft_us=draft_s * US_PER_S,
        other_us=(total_s - verify_s - draft_s) * US_PER_S,
    )


def step_row(gain: Committed, record: RoundRecord) -> StepRow:
    """Row of one verify step; a step that ended its request says why in ``cut``."""
    live, num_verified = gain.live, len(gain.drafted)
    depth = num_verified if gain.tree is None else gain.tree.depth
    return StepRow(
        request_id=live.request.request_id,
        turn=live.request.turn,
        category=live.request.category,
        round=record.round,
        num_live=record.num_live,
        step=len(live.steps),
        seq_len=gain.first_length,
        proposed=num_verified,
        depth=depth,
        verified=num_verified,
        accepted=gain.num_accepted,
        emitted=len(gain.emitted),
        bonus=int(gain.num_accepted == depth and len(gain.emitted) > depth),
        cut="none" if gain.finish_reason is None else gain.finish_reason.value,
        draft_us=record.draft_us,
        verify_us=record.verify_us,
        other_us=record.other_us,
        draft_ids=gain.drafted,
        output_ids=gain.emitted,
        overlap=None if gain.overlap is None else tuple(gain.overlap),
        draft_probs=None if gain.draft_probs is None else tuple(gain.draft_probs),
        target_probs=None if gain.target_probs is None else tuple(gain.target_probs),
        parents=None if gain.tree is None else gain.tree.parents,
    )


def request_output(live: LiveRequest, *, ended_s: float) -> RequestOutput:
    """Output of a finished request."""
    assert live.finish_reason is not None, "only a finished request has an output"
    output_ids = tuple(live.tokens[live.num_prompt :])
    return RequestOutput(
        request_id=live.request.request_id,
        turn=live.request.turn,
        category=live.request.category,
        prompt_ids=tuple(live.tokens[: live.num_prompt]),
        output_ids=output_ids,
        text=live.stops.text(output_ids),
        finish_reason=live.finish_reason,
        logprobs=tuple(live.logprobs) if live.request.sampling.logprobs else None,
        steps=mark_loops(live.steps, output_ids),
        num_preemptions=live.num_preemptions,
        first_token_us=(live.first_token_s - live.started_s) * US_PER_S,
        total_us=(ended_s - live.started_s) * US_PER_S,
    )
