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
class Judgement:
    """``lossless`` is True, False, or None when nothing was compared."""

    lossless: bool | None
    how: str


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
    different = [name for name, what in _differences(outputs, plain) if what]
    if not different:
        return Judgement(lossless=True, how=verifier.lossless_how)
    first = dict(_differences(outputs, plain))[different[0]]
    return Judgement(
        lossless=False,
        how=f"{len(different)} of {len(plain)} outputs differ from the baseline, the first at "
        f"{different[0][0]} turn {different[0][1]}: {first}",
    )


def require(judgement: Judgement) -> None:
    """Raise NotLosslessError unless the run is proven lossless."""
    if judgement.lossless is not True:
        raise NotLosslessError(f"require_lossless: the run is not proven lossless: {judgement.how}")


def _differences(
    outputs: Sequence[RequestOutput], plain: Mapping[tuple[str, int], tuple[Ids, Ids]]
) -> list[tuple[tuple[str, int], str]]:
    """Every request of either run with what differs; an empty text where nothing does."""
    ours = {(output.request_id, output.turn): output for output in outputs}
    found = []
    for name in {**plain, **ours}:
        if name not in ours or name not in plain:
            found.append((name, "one run has it, the other has not"))
            continue
        prompt, expected = plain[name]
        found.append((name, _difference(ours[name], prompt, expected)))
    return found


def _difference(output: RequestOutput, prompt: Ids, expected: Ids) -> str:
    if output.prompt_ids != prompt:
        return "the prompts differ"
    if output.output_ids == expected:
        return ""
    pairs = zip(output.output_ids, expected, strict=False)
    at = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        return f"{len(output.output_ids)} tokens instead of {len(expected)}"
    return f"token {at} is {output.output_ids[at]} instead of {expected[at]}"
