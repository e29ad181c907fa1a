"""Whether a run is proven lossless, and how: by its rule, or token for token against plain decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec.api import Verifier
from specdec.errors import SpecDecError
from specdec.request import RequestOutput

BY_RULE = "rule"
Ids = tuple[int, ...]


class NotLosslessError(SpecDecError, RuntimeError):
    """``require_lossless`` is set and the output is not proven to be that of plain decoding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """An output that is not the baseline's.

    what   in words
    token  number of the first output token that differs after equal ones
    ids    that token here and there; None for a difference of another kind
    """

    request_id: str
    turn: int
    what: str
    token: int = 0
    ids: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.request_id} turn {self.turn}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """``lossless`` is True, False, or None when nothing was compared.

    differences  from the baseline, as far as tokens were compared; None where they were not
    """

    lossless: bool | None
    how: str
    differences: tuple[Difference, ...] | None = None


def judge(
    verifier: Verifier,
    outputs: Sequence[RequestOutput],
    plain: Mapping[tuple[str, int], tuple[Ids, Ids]] | None,
) -> Judgement:
    """Judge a run against the (prompt, output) token ids of plain decoding by request id and turn."""
    if not verifier.lossless:
        return Judgement(lossless=False, how=f"the verifier {verifier.name} is lossy")
    if verifier.lossless_how == BY_RULE:
        return Judgement(lossless=True, how=BY_RULE)
    if plain is None:
        return Judgement(lossless=None, how="no baseline to compare with")
    different = differences(outputs, plain)
    if not different:
        return Judgement(lossless=True, how=verifier.lossless_how, differences=())
    return Judgement(
        lossless=False,
        how=f"{len(different)} of {len(plain)} outputs differ from the baseline, the first at {different[0]}",
        differences=different,
    )


def require(judgement: Judgement) -> None:
    """Raise NotLosslessError unless the run is proven lossless."""
    if judgement.lossless is not True:
        raise NotLosslessError(f"require_lossless: the run is not proven lossless: {judgement.how}")


def differences(
    outputs: Sequence[RequestOutput], plain: Mapping[tuple[str, int], tuple[Ids, Ids]]
) -> tuple[Difference, ...]:
    """Every request of either run in which they differ."""
    ours = {(output.request_id, output.turn): output for output in outputs}
    found = []
    for request_id, turn in {**plain, **ours}:
        name = request_id, turn
        if name not in ours or name not in plain:
            what = "one run has it, the other has not"
            found.append(Difference(request_id=request_id, turn=turn, what=what))
            continue
        prompt, expected = plain[name]
        found.append(_difference(ours[name], prompt, expected))
    return tuple(each for each in found if each is not None)


def _difference(output: RequestOutput, prompt: Ids, expected: Ids) -> Difference | None:
    name = {"request_id": output.request_id, "turn": output.turn}
    if output.prompt_ids != prompt:
        return Difference(**name, what="the prompts differ")
    if output.output_ids == expected:
        return None
    pairs = zip(output.output_ids, expected, strict=False)
    at = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        return Difference(**name, what=f"{len(output.output_ids)} tokens instead of {len(expected)}")
    ids = output.output_ids[at], expected[at]
    return Difference(**name, what=f"token {at} is {ids[0]} instead of {ids[1]}", token=at, ids=ids)
