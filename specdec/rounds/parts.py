"""RoundParts: what an eager and a recorded round are both made of, and what either gives back."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.api import Drafter, Target, Verifier
from specdec.noise import VocabularyNoise
from specdec.request import LiveRequest
from specdec.rounds.steps import Committed, Drafted
from specdec.sampling import BatchSampling, SamplingRequest

MAX_CACHED_SAMPLINGS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundParts:
    """The parts of an engine that take part in a round.

    record_probs  whether rows get the probabilities of drafted tokens
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    noise: VocabularyNoise
    record_probs: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """What a round leaves behind; times in seconds.

    drafted   proposal that the next round verifies, or None
    verify_s  target pass and judgement, until the verdict is on the host; of a recorded round the drafting too
    draft_s   proposal, until it is on the host, unless it is part of ``verify_s``
    wait_s    of ``verify_s``, from the launch of the recording until its result is on the host, which meanwhile writes
              the rows of the round before; None for an eager round
    has_trees whether it verified a tree
    """

    committed: Sequence[Committed]
    drafted: Drafted | None
    verify_s: float
    draft_s: float
    wait_s: float | None = None
    has_trees: bool = False


class Samplings:
    """How batches sample: made once per composition of the batch."""

    def __init__(self, parts: RoundParts) -> None:
        self._parts = parts
        self._known: dict[tuple[LiveRequest, ...], BatchSampling] = {}

    def of(self, requests: tuple[LiveRequest, ...]) -> BatchSampling:
        """How ``requests`` sample, in this order."""
        sampling = self._known.get(requests)
        if sampling is None:
            if len(self._known) >= MAX_CACHED_SAMPLINGS:
                self._known.clear()
            sampling = self._known[requests] = BatchSampling(
                [sampling_request(live) for live in requests],
                noise=self._parts.noise,
                coupling=self._parts.verifier.coupling,
            )
        return sampling


def sampling_request(live: LiveRequest) -> SamplingRequest:
    """What sampling needs to know of a live request; shares its growing token list."""
    return SamplingRequest(
        params=live.request.sampling,
        stream=live.stream,
        tokens=live.tokens,
        num_prompt=live.num_prompt,
        stop_ids=live.stops.ending_ids,
    )
