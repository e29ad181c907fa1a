"""Texts of runs token by token: which step each came from, and how it came about; reads no file of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.collect import FinishedRun
from experiments.report.rows import Output
from experiments.toy_text import Bytes
from specdec.errors import SpecDecError
from specdec.metrics import StepRow

TOY = "experiments.toy.load"
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
MAX_TOKENS = 400


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
        return Bytes()
    from experiments.checkpoints import folder_of
    from experiments.tokenizer import TextTokenizer

    try:
        folder = folder_of(str(run.config["target"]["checkpoint"]))
        return None if folder is None else TextTokenizer.load(folder)
    except SpecDecError:
        return None
