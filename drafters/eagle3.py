"""EAGLE-3 drafting as a chain: one catch-up pass over the target's fused states, then K - 1 steps of the head.

The head is any ``DraftBackend`` that says which target layers it reads; the order of calls is that of NextN.
Source: Li et al., EAGLE-3 (2025), arXiv:2503.01840.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafters.common import check_num_draft_tokens
from drafters.nextn import NextnConfig, NextnDrafter
from specdec.api import DraftBackend, Drafter, DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import one_of
from specdec.errors import ConfigError

LOADER = "experiments.heads.load_eagle3_head"


@runtime_checkable
class ReadsLayers(DraftBackend, Protocol):
    """A draft model that reads states of the target.

    hidden_layers  the layers, in the order in which their states are concatenated
    """

    hidden_layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Config:
    """Settings of EAGLE-3 drafting. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round, 1..31
    proposals         ``sampled`` draws with the verifier's coupling, ``greedy`` takes the draft's argmax
    checkpoint        folder of the head
    loader            importable function that makes the ``DraftBackend``; called by ``experiments.build``
    """

    num_draft_tokens: int = 3
    proposals: str = "sampled"
    checkpoint: str = ""
    loader: str = LOADER

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("proposals", self.proposals, ("sampled", "greedy"), where="drafter.proposals")

    @property
    def needs(self) -> DrafterNeeds:
        """Without the layers, which the checkpoint names: the live drafter declares those."""
        return DrafterNeeds()

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter over ``setup.draft_backend``; raises ConfigError when there is none."""
        if not isinstance(setup.draft_backend, ReadsLayers):
            raise ConfigError("drafter eagle3 needs a head made for this target (conf: drafter.checkpoint)")
        return StateDrafter(setup.draft_backend, num_draft_tokens=self.num_draft_tokens, proposals=self.proposals)


class StateDrafter:
    """Chains from a head over the target's states. Owns no state between rounds: the backend's rows are rewritten."""

    def __init__(self, backend: ReadsLayers, *, num_draft_tokens: int, proposals: str) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.needs = DrafterNeeds(hidden_layers=backend.hidden_layers)
        self._chain = NextnDrafter(NextnConfig(num_draft_tokens=num_draft_tokens, proposals=proposals), backend)

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Catch up over the pass, then draft; the catch-up happens even when nobody wants tokens."""
        return self._chain.propose(inputs)

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop: the next catch-up rewrites the draft cache of a reused row."""
