"""SamplingParams: how one request wants its tokens chosen and when it wants to end; knows no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec import checks
from specdec.errors import ConfigError

GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy: dividing logits by less leaves one token in single precision anyway."""


def _fail(key: str, allowed: str, got: object) -> ConfigError:
    return ConfigError(f"sampling.{key} must be {allowed}, got {got!r} (conf: sampling.{key})")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling options of one request; raises ConfigError that names the key when a value cannot work.

    temperature         0 (or below 1e-6) is greedy; any finite value above is allowed
    top_k               keep the k most probable tokens; 0 or -1 keeps all
    top_p               keep the shortest prefix of the sorted tokens whose mass reaches p; 1 keeps all,
                        0 keeps the most probable token only
    min_p               keep tokens at least min_p times as probable as the best; 0 keeps all
    seed                the request's own stream of noise; None derives one from the run's seed and the request id
    max_new_tokens      most tokens that are emitted
    min_new_tokens      no end-of-sequence or stop token before this many tokens are emitted
    stop                strings that end the output
    stop_token_ids      token ids that end the output
    ignore_eos          whether end-of-sequence tokens are ordinary tokens
    repetition_penalty  divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is off
    frequency_penalty   subtracted per earlier occurrence in the output; 0 is off
    presence_penalty    subtracted once from tokens present in the output; 0 is off
    logprobs            whether the log-probability of every emitted token is wanted
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: bool = False

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, low=0.0)
        _integer("top_k", self.top_k, low=-1)
        _number("top_p", self.top_p, low=0.0, high=1.0)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        if self.seed is not None:
            _integer("seed", self.seed, low=-(2**63), high=2**63 - 1)
        _integer("max_new_tokens", self.max_new_tokens, low=1)
        _integer("min_new_tokens", self.min_new_tokens, low=0)
        if self.min_new_tokens > self.max_new_tokens:
            allowed = f"at most sampling.max_new_tokens ({self.max_new_tokens})"
            raise _fail("min_new_tokens", allowed, self.min_new_tokens)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        checks.flag("sampling.ignore_eos", self.ignore_eos, where="sampling.ignore_eos")
        _number("repetition_penalty", self.repetition_penalty, low=0.0)
        if self.repetition_penalty == 0:
            raise _fail("repetition_penalty", "a number above 0", self.repetition_penalty)
        _number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        checks.flag("sampling.logprobs", self.logprobs, where="sampling.logprobs")

    @property
    def greedy(self) -> bool:
        """Whether the request takes the most probable token instead of drawing one."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_filters(self) -> bool:
        """Whether top-k, top-p or min-p removes anything; never for a greedy request."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens that came before."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


def _number(key: str, value: object, *, low: float, high: float | None = None) -> None:
    checks.number(f"sampling.{key}", value, low=low, high=high, where=f"sampling.{key}")


def _integer(key: str, value: object, *, low: int, high: int | None = None) -> None:
    checks.integer(f"sampling.{key}", value, low=low, high=high, where=f"sampling.{key}")


def _stop_strings(value: object) -> tuple[str, ...]:
    """One string or a sequence of non-empty strings, as a tuple."""
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or any(not isinstance(s, str) or not s for s in strings):
        raise _fail("stop", "a list of non-empty strings", value)
    return tuple(strings)


def _token_ids(value: object) -> tuple[int, ...]:
    """A sequence of token ids, as a tuple."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _fail("stop_token_ids", "a list of token ids", value)
    for token in value:
        _integer("stop_token_ids", token, low=0)
    return tuple(value)
