"""Steps and outputs of one run: figures by category, and the tokens of its texts with how each came about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from experiments.report.collect import FinishedRun, Measure
from experiments.run_folder import OUTPUTS, STEPS, read_jsonl
from specdec.bootstrap import Bootstrap
from specdec.errors import SpecDecError
from specdec.metrics import StepRow, Steps, tokens_per_step
from specdec.round_times import RoundTimes

TOY = "experiments.toy.load"
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
MAX_OUTPUTS = 6
MAX_TOKENS = 400


class RowsError(SpecDecError, ValueError):
    """The rows of a run cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One line of ``outputs.jsonl``, as far as the report needs it."""

    request_id: str
    turn: int
    category: str
    output_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What the report takes from the rows of one run; the other rows are let go, since a run may have very many.

    by_category  ``tokens_per_step`` of every category, in order of its name
    outputs      the first MAX_OUTPUTS, each with its steps in order
    """

    num_rounds: int
    by_category: Mapping[str, Measure]
    outputs: tuple[tuple[Output, tuple[StepRow, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token of an output.

    text  empty where no text belongs to it: special tokens, parts of a character, no tokenizer
    step  None for the first token, which came from the prompt
    index  place among the tokens that its step emitted, from 0
    """

    id: int
    text: str
    step: StepRow | None
    index: int

    @property
    def kind(self) -> str:
        """first, accepted, bonus, corrected, or plain: a step without a draft."""
        if self.step is None:
            return "first"
        if not self.step.verified:
            return "plain"
        if self.index < self.step.accepted:
            return "accepted"
        return "bonus" if self.step.bonus else "corrected"


def read_rows(path: Path) -> Rows:
    """Rows of a run folder; raises RowsError when they cannot be read."""
    try:
        steps = tuple(_step(record) for record in read_jsonl(path / STEPS))
        outputs = tuple(_output(record) for record in read_jsonl(path / OUTPUTS)[:MAX_OUTPUTS])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RowsError(f"its rows cannot be read ({error})") from None
    return Rows(
        num_rounds=RoundTimes.of(steps).num_rounds,
        by_category=_by_category(steps),
        outputs=tuple((output, _steps_of(output, steps)) for output in outputs),
    )


def tokens_of(output: Output, steps: Sequence[StepRow], tokenizer: Any) -> tuple[Token, ...]:
    """The tokens of ``output`` up to MAX_TOKENS; ``tokenizer`` has ``decode(ids)``, or is None."""
    ids = output.output_ids[:MAX_TOKENS]
    origins: list[tuple[StepRow | None, int]] = [(None, 0)]
    origins += [(step, index) for step in steps for index in range(step.emitted)]
    # A torn file may lack the last steps of an output.
    return tuple(
        Token(id=id_, text=text, step=step, index=index)
        for id_, text, (step, index) in zip(ids, pieces(ids, tokenizer), origins, strict=False)
    )


def pieces(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text that each token adds; a character of several tokens belongs to its last one."""
    if tokenizer is None:
        return [""] * len(ids)
    out, start, shown = [], 0, 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[start:end]))
        if text.endswith(UNKNOWN):
            out.append("")
            continue
        out.append(text[shown:].lstrip(UNKNOWN))
        start, shown = _window(ids, end, tokenizer)
    return out


def _window(ids: Sequence[int], end: int, tokenizer: Any) -> tuple[int, int]:
    """From where the next token is decoded: a token earlier, since a space may depend on what stands before it."""
    start = max(0, end - 1)
    return start, len(tokenizer.decode(list(ids[start:end])))


def tokenizer_of(run: FinishedRun) -> Any:
    """What turns the ids of a run into text, or None; a checkpoint that has moved since leaves the ids."""
    if run.settings["target"] == TOY:
        from experiments.toy import Bytes  # here, since it imports torch

        return Bytes()
    from experiments.checkpoints import folder_of
    from experiments.tokenizer import TextTokenizer

    try:
        folder = folder_of(str(run.config["target"]["checkpoint"]))
        return None if folder is None else TextTokenizer.load(folder)
    except SpecDecError:
        return None


STEP_FIELDS = frozenset(spec.name for spec in fields(StepRow))


def _step(record: Mapping[str, Any]) -> StepRow:
    return StepRow(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
            if name in STEP_FIELDS
        }
    )


def _output(record: Mapping[str, Any]) -> Output:
    return Output(
        request_id=str(record["request_id"]),
        turn=int(record["turn"]),
        category=str(record["category"]),
        output_ids=tuple(map(int, record["output_ids"])),
        finish_reason=str(record["finish_reason"]),
    )


def _by_category(steps: Sequence[StepRow]) -> dict[str, Measure]:
    groups: dict[str, list[StepRow]] = {}
    for row in steps:
        groups.setdefault(row.category or "(none)", []).append(row)
    return {name: _tokens_per_step(groups[name]) for name in sorted(groups)}


def _steps_of(output: Output, steps: Sequence[StepRow]) -> tuple[StepRow, ...]:
    own = (row for row in steps if (row.request_id, row.turn) == (output.request_id, output.turn))
    return tuple(sorted(own, key=lambda row: row.step))


def _tokens_per_step(rows: Sequence[StepRow]) -> Measure:
    steps = Steps.of(rows)
    found = Bootstrap(steps.num_requests).estimate(tokens_per_step(steps))
    several = steps.num_requests > 1
    return Measure(
        value=found.value, low=found.low if several else None, high=found.high if several else None, n=found.n
    )
