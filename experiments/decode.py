"""Decoding a workload with an engine: conversations turn by turn, and how long it took; writes no files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

from experiments.chat import Message, encode_chat
from experiments.speed import US_PER_S, Timing
from experiments.targets import LoadedTarget
from experiments.workloads import Row
from specdec.engine import Engine
from specdec.errors import CapacityError, WorkloadError
from specdec.request import Request, RequestOutput
from specdec.rounds.execution import Execution
from specdec.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """Everything that one decode of a workload produced.

    outputs        in order of finishing
    execution      how the rounds ran
    skipped_turns  (id, turn) of later turns that no longer fitted into the context
    """

    outputs: tuple[RequestOutput, ...]
    timing: Timing
    execution: Execution
    skipped_turns: tuple[tuple[str, int], ...]


class Conversation:
    """One row of a workload on its way through its turns."""

    def __init__(self, row: Row, sampling: SamplingParams, loaded: LoadedTarget) -> None:
        self.row = row
        self._sampling = sampling
        self._loaded = loaded
        self._messages: list[Message] = []

    @property
    def num_turns(self) -> int:
        """Turns of the user."""
        return len(self.row.turns) if self.row.turns is not None else 1

    def first(self) -> Request:
        """The first request; raises WorkloadError for text that the target cannot read."""
        return self._request(0)

    def after(self, output: RequestOutput) -> Request | None:
        """The request that continues ``output``; None when the conversation is over."""
        if output.turn + 1 >= self.num_turns:
            return None
        self._messages.append(Message(role="assistant", content=output.text.strip()))
        return self._request(output.turn + 1)

    def _request(self, turn: int) -> Request:
        return Request(
            request_id=self.row.id,
            prompt=tuple(self._prompt_ids(turn)),
            sampling=self._sampling,
            turn=turn,
            category=self.row.category,
        )

    def _prompt_ids(self, turn: int) -> Sequence[int]:
        if self.row.prompt_ids is not None:
            return self.row.prompt_ids
        if self._loaded.tokenizer is None:
            raise WorkloadError(f"row {self.row.id!r} is text, and the target has no tokenizer: give prompt_ids")
        if self.row.turns is None:
            assert self.row.prompt is not None, "a row has exactly one form"
            return self._with_bos(self._loaded.tokenizer.encode(self.row.prompt))
        self._messages.append(Message(role="user", content=self.row.turns[turn]))
        return self._with_bos(self._loaded.tokenizer.encode(encode_chat(self._messages, self._loaded.chat_format)))

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._loaded.bos_id
        wanted = self._loaded.add_bos and bos is not None and ids[:1] != [bos]
        return [bos, *ids] if wanted else ids


def decode(
    engine: Engine,
    conversations: Sequence[Conversation],
    *,
    on_finish: Callable[[RequestOutput], None] | None = None,
) -> Decoded:
    """Decode all conversations; ``on_finish`` is called outside of the timed region for each finished request.

    Raises WorkloadError or CapacityError for a first turn that cannot be run.
    """
    by_id = {conversation.row.id: conversation for conversation in conversations}
    for conversation in conversations:
        engine.add(conversation.first())
    # Recording is no part of decoding, as loading is none.
    engine.record_ahead()
    outputs: list[RequestOutput] = []
    skipped: list[tuple[str, int]] = []
    total_s = cpu_s = 0.0
    while engine.has_work:
        started, cpu_started = perf_counter(), process_time()
        engine.run_round()
        total_s += perf_counter() - started
        cpu_s += process_time() - cpu_started
        for output in engine.take_outputs():
            outputs.append(output)
            if on_finish is not None:
                on_finish(output)
            skipped += _continue(engine, by_id[output.request_id], output)
    return Decoded(
        outputs=tuple(outputs),
        timing=_timing(engine, outputs, total_s=total_s, cpu_s=cpu_s),
        execution=engine.execution,
        skipped_turns=tuple(skipped),
    )


def _continue(engine: Engine, conversation: Conversation, output: RequestOutput) -> list[tuple[str, int]]:
    """Add the next turn; the turns that are given up because the conversation has filled the context."""
    request = conversation.after(output)
    if request is None:
        return []
    try:
        engine.add(request)
    except (WorkloadError, CapacityError):
        return [(output.request_id, turn) for turn in range(request.turn, conversation.num_turns)]
    return []


def _timing(engine: Engine, outputs: Sequence[RequestOutput], *, total_s: float, cpu_s: float) -> Timing:
    pure = [record for record in engine.rounds if record.num_steps and not record.num_prompt_tokens]
    return Timing(
        total_us=total_s * US_PER_S,
        decode_us=sum(record.total_us for record in pure),
        num_tokens=sum(len(output.output_ids) for output in outputs),
        num_decoded=sum(record.num_emitted for record in pure),
        cpu_us=cpu_s * US_PER_S,
    )
