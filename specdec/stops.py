"""When a request ends: decided token by token, so that a block of accepted tokens ends where plain decoding would.

Knows nothing of rounds: it sees the emitted tokens of one request in order.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum

from specdec.sampling_params import SamplingParams

Detokenize = Callable[[Sequence[int]], str]

# The decoder's mark for bytes that are no character yet; the text is held back until it is resolved.
UNFINISHED_CHARACTER = "\ufffd"
NOT_FOUND = -1


class FinishReason(Enum):
    """Why a request ended.

    EOS      the target chose an end-of-sequence id
    STOP     a stop token id or a stop string of the request appeared
    LENGTH   the token budget is used up
    CONTEXT  prompt and output fill the context of the target
    """

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"


class StopStrings:
    """Text of a growing token list, searched for stop strings as it grows.

    Each token is decoded with the few before it, so that the cost per token does not grow with the output.
    The result depends on the tokens only, never on how they were grouped into rounds.
    """

    def __init__(self, stops: Sequence[str], detokenize: Detokenize) -> None:
        self._stops = tuple(stops)
        self._detokenize = detokenize
        self._longest = max(map(len, self._stops))
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self.text = ""

    def push(self, token: int) -> int:
        """Add one token; where the first stop string that it completes begins in ``text``, or -1."""
        self._ids.append(token)
        known = self._detokenize(self._ids[self._prefix : self._read])
        grown = self._detokenize(self._ids[self._prefix :])
        if len(grown) <= len(known) or grown.endswith(UNFINISHED_CHARACTER):
            return NOT_FOUND
        self._prefix, self._read = self._read, len(self._ids)
        # A string that lies in the old text alone was seen before.
        searched_from = max(0, len(self.text) - self._longest + 1)
        self.text += grown[len(known) :]
        found = [at for stop in self._stops if (at := self.text.find(stop, searched_from)) != NOT_FOUND]
        return min(found, default=NOT_FOUND)


class StopChecker:
    """Applies the rules of one request in this order: end of sequence, stop token, stop string, length, context.

    max_output  tokens that may be emitted before the context of the target is full
    ending_ids  token ids that end this request
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_ids: Collection[int],
        max_output: int,
        detokenize: Detokenize | None,
    ) -> None:
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self.ending_ids = tuple(sorted(self._eos_ids | self._stop_ids))
        self._max_new_tokens = params.max_new_tokens
        self._min_new_tokens = params.min_new_tokens
        self._max_output = max_output
        self._detokenize = detokenize
        self._strings = StopStrings(params.stop, detokenize) if params.stop and detokenize else None
        self._cut = NOT_FOUND
        self._num_silent = 0
        self._num_output = 0

    def push(self, token: int) -> FinishReason | None:
        """Count one emitted token; the reason if it is the last one."""
        self._num_output += 1
        found = self._strings.push(token) if self._strings is not None else NOT_FOUND
        if self._num_output >= self._min_new_tokens:
            if token in self._eos_ids or token in self._stop_ids:
                self._num_silent = 1
                return FinishReason.EOS if token in self._eos_ids else FinishReason.STOP
            if found != NOT_FOUND:
                self._cut = found
                return FinishReason.STOP
        if self._num_output >= self._max_new_tokens:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if self._num_output >= self._max_output else None

    def text(self, output_ids: Sequence[int]) -> str:
        """Text of the emitted tokens without the stop string or token that ended them.

        Empty without a detokenizer.
        """
        if self._detokenize is None:
            return ""
        if self._cut != NOT_FOUND and self._strings is not None:
            return self._strings.text[: self._cut]
        return self._detokenize(output_ids[: len(output_ids) - self._num_silent])
