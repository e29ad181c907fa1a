"""Suffix decoding: continue the longest matching suffix by what followed it most often, through a suffix tree.

The trees are those of the optional package arctic-inference. Unlike prompt lookup it counts continuations, stops where
they are too rare, and drafts more after a longer match; it may also search the outputs of other requests.
Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (arXiv 2411.04975).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from drafters.common import check_num_draft_tokens, proposal_of
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import integer, number
from specdec.errors import ConfigError

if TYPE_CHECKING:
    from arctic_inference.suffix_decoding import SuffixDecodingCache

PACKAGE = "arctic_inference"
MAX_DEPTH = 1024
MAX_REQUESTS = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SuffixConfig:
    """Settings of suffix decoding. Raises ConfigError for values out of range, and without arctic-inference.

    num_draft_tokens  most tokens proposed per round, 1..31
    max_depth         longest match and continuation that the trees hold, 2..1024
    spec_factor       most draft tokens per matched token
    spec_offset       draft tokens on top of these
    min_probability   drafting stops before a token that followed less often than this share of the time
    max_requests      outputs of how many requests are searched besides the request's own text. With 0 a request's
                      drafts, and so its text under a sampling rule, do not depend on what else is decoded
    """

    num_draft_tokens: int = 8
    max_depth: int = 64
    spec_factor: float = 1.0
    spec_offset: float = 0.0
    min_probability: float = 0.1
    max_requests: int = 0

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        integer("max_depth", self.max_depth, low=2, high=MAX_DEPTH, where="drafter.max_depth")
        number("spec_factor", self.spec_factor, low=0.0, where="drafter.spec_factor")
        number("spec_offset", self.spec_offset, low=0.0, where="drafter.spec_offset")
        number("min_probability", self.min_probability, low=0.0, high=1.0, where="drafter.min_probability")
        integer("max_requests", self.max_requests, low=0, high=MAX_REQUESTS, where="drafter.max_requests")
        # Here and not in build, so that a run ends before it has loaded and decoded anything.
        if find_spec(PACKAGE) is None:
            raise _missing(f"there is no module {PACKAGE}")

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(history=True)

    def build(self, setup: DraftSetup) -> "SuffixDrafter":
        """Make the live drafter on the device of ``setup``."""
        return SuffixDrafter(self, device=setup.device)


def _missing(reason: str) -> ConfigError:
    return ConfigError(
        f"drafter suffix needs arctic-inference 0.3 or newer: pip install 'specdec-research[suffix]' ({reason})"
    )


def _new_cache(config: SuffixConfig) -> "SuffixDecodingCache":
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError as error:
        raise _missing(str(error)) from None
    return SuffixDecodingCache(max_tree_depth=config.max_depth, max_cached_requests=config.max_requests)


class SuffixDrafter:
    """Keeps the trees, and which tokens of which request they hold, between rounds."""

    def __init__(self, config: SuffixConfig, *, device: torch.device) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self._config = config
        self._device = device
        self._cache = _new_cache(config)
        self._ids: dict[int, int] = {}
        self._num_known: dict[int, int] = {}
        self._next_id = 0

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Look up every request that wants tokens; what is new of its text is entered first."""
        requests = zip(inputs.layout.rows, inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True)
        drafts = [self._lookup(row, history, limit) if wanted else () for row, history, wanted, limit in requests]
        return proposal_of(drafts, self._device)

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the text of these rows; their outputs stay searchable for others, up to ``max_requests``."""
        for row in rows:
            if row in self._ids:
                self._cache.stop_request(self._ids.pop(row))
                del self._num_known[row]

    def _lookup(self, row: int, history: Sequence[int], limit: int) -> Sequence[int]:
        self._enter(row, history)
        draft = self._cache.speculate(
            self._ids[row],
            list(history[-self._config.max_depth :]),
            max_spec_tokens=min(limit, self.num_draft_tokens),
            max_spec_factor=self._config.spec_factor,
            max_spec_offset=self._config.spec_offset,
            min_token_prob=self._config.min_probability,
        )
        return draft.token_ids

    def _enter(self, row: int, history: Sequence[int]) -> None:
        """What is known when a request is first seen counts as its prompt, the rest as its output."""
        if row not in self._ids:
            self._ids[row] = self._next_id
            self._next_id += 1
            self._cache.start_request(self._ids[row], list(history))
        elif len(history) > self._num_known[row]:
            self._cache.add_active_response(self._ids[row], list(history[self._num_known[row] :]))
        self._num_known[row] = len(history)

    def __reduce__(self) -> tuple[object, ...]:
        """Of a drafter that searches nothing but a request's own text a fresh one is an equal copy."""
        if self._config.max_requests:
            raise TypeError("the trees of a drafter with max_requests > 0 cannot be copied")
        return _fresh, (self._config, self._device)


def _fresh(config: SuffixConfig, device: torch.device) -> SuffixDrafter:
    return SuffixDrafter(config, device=device)
