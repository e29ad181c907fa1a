"""Request, its output, and the state of a request that is being decoded; knows nothing of rounds or pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.sampling_params import SamplingParams
from specdec.step_row import StepRow
from specdec.stops import FinishReason, StopChecker
from specdec.trees.draft_tree import DraftTree

__all__ = ["FinishReason", "LiveRequest", "Request", "RequestOutput"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt and how to continue it.

    request_id  with ``turn``, unique among the unfinished requests of an engine
    prompt      token ids; empty only for a target that has a begin-of-sequence id
    sampling    how tokens are chosen and when the request ends
    turn        index of the turn in its conversation; kept in every row
    category    label of the prompt; kept in every row
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    turn: int = 0
    category: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutput:
    """What a finished request produced.

    output_ids       emitted tokens, the one that ended the request included
    text             their text without the stop string or token that ended it; empty without a detokenizer
    logprobs         one per emitted token under the target's processed law, or None if not asked for
    steps            one row per verify step; the first token comes from the prompt and is no step
    num_preemptions  how often its pages were taken away and its prefix computed again
    first_token_us   time from the start of its first round to its first token, microseconds
    total_us         time from the start of its first round to its end, microseconds
    """

    request_id: str
    turn: int
    category: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None
    steps: tuple[StepRow, ...]
    num_preemptions: int
    first_token_us: float
    total_us: float

    @property
    def num_steps(self) -> int:
        """Verify steps that the request took part in."""
        return len(self.steps)


NO_ROW = -1


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Mutable state of a request in the engine; written by the scheduler and by ``commit`` only.

    stops         decides after each emitted token whether it is the last
    stream        key of the request's noise
    tokens        prompt and emitted tokens; appended to in place, so that others may hold on to the list
    num_prompt    how many of them are prompt
    max_tokens    the request ends when ``tokens`` has this length (budget or context)
    row           stable row while it runs, NO_ROW while it waits
    num_computed  leading positions whose K/V is committed
    prefill_end   prompt chunks run up to this position
    draft         drafted tokens that the next pass verifies
    draft_index   index of this request in the proposal that holds ``draft``
    draft_tree    shape of ``draft``, parents before their children; None for a chain
    """

    request: Request
    stops: StopChecker
    stream: int
    tokens: list[int]
    num_prompt: int
    max_tokens: int
    prefill_end: int
    row: int = NO_ROW
    num_computed: int = 0
    draft: Sequence[int] = ()
    draft_index: int = 0
    draft_tree: DraftTree | None = None
    logprobs: list[float] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    started_s: float | None = None
    first_token_s: float = 0.0

    @property
    def num_output(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def is_prefilling(self) -> bool:
        """Whether known tokens are left to be computed before the next one is emitted."""
        return self.num_computed < self.prefill_end

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_tokens - len(self.tokens)

    def preempt(self) -> None:
        """Lose row, pages and draft; the emitted tokens stay, and all but the newest are computed again."""
        self.row = NO_ROW
        self.num_computed = 0
        self.prefill_end = len(self.tokens) - (1 if self.num_output else 0)
        self.draft, self.draft_tree = (), None
        self.num_preemptions += 1
