"""EAGLE-3 drafting: one catch-up pass over the target's fused states, then steps of the head, as a chain or a tree.

The head is any ``DraftBackend`` that says which target layers it reads; a chain's order of calls is that of NextN.
Source: Li et al., EAGLE-3 (2025), arXiv:2503.01840.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafters.common import check_num_draft_tokens, check_tree
from drafters.nextn import NextnConfig, NextnDrafter
from drafters.tree_growth import GrowsTrees, Growth, grow
from specdec.api import DraftBackend, Drafter, DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import one_of
from specdec.errors import ConfigError, UnsupportedError

LOADER = "experiments.heads.load_eagle3_head"


@runtime_checkable
class ReadsLayers(DraftBackend, Protocol):
    """A draft model that reads states of the target.

    hidden_layers  the layers, in the order in which their states are concatenated
    """

    hidden_layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """Settings of any trained head over a target's states. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round, 1..31: of a chain its length, of a tree its nodes
    proposals         ``sampled`` draws with the verifier's coupling, ``greedy`` takes the draft's argmax
    checkpoint        folder of the head
    tree_width        0: chains; else followers of a node, of a dynamic tree of at most num_draft_tokens nodes
    tree_depth        levels of the tree
    """

    num_draft_tokens: int = 3
    proposals: str = "sampled"
    checkpoint: str = ""
    tree_width: int = 0
    tree_depth: int = 4

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("proposals", self.proposals, ("sampled", "greedy"), where="drafter.proposals")
        check_tree(self.tree_width, self.tree_depth)

    @property
    def needs(self) -> DrafterNeeds:
        """Without the layers, which the checkpoint names: the live drafter declares those."""
        return DrafterNeeds(trees=self.tree_width > 0)

    @property
    def drafting(self) -> "Drafting":
        """The settings that the live drafter reads."""
        return Drafting(
            num_draft_tokens=self.num_draft_tokens,
            proposals=self.proposals,
            tree_width=self.tree_width,
            tree_depth=self.tree_depth,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Config(HeadConfig):
    """Settings of EAGLE-3 drafting; see ``HeadConfig``.

    loader  importable function that makes the ``DraftBackend``; called by ``experiments.build``
    """

    loader: str = LOADER

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter over ``setup.draft_backend``; raises ConfigError when there is none."""
        if not isinstance(setup.draft_backend, ReadsLayers):
            raise ConfigError("drafter eagle3 needs a head made for this target (conf: drafter.checkpoint)")
        return StateDrafter(setup.draft_backend, self.drafting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """How a head over a target's states drafts; see ``HeadConfig``."""

    num_draft_tokens: int
    proposals: str
    tree_width: int
    tree_depth: int

    @property
    def growth(self) -> Growth:
        """How its trees grow."""
        return Growth(
            width=self.tree_width,
            depth=self.tree_depth,
            max_nodes=self.num_draft_tokens,
            greedy=self.proposals == "greedy",
        )


class StateDrafter:
    """Chains or trees from a head over the target's states.

    Owns no state between rounds: the backend's rows are rewritten by position. Raises UnsupportedError for trees from a
    head that cannot follow several drafts.
    """

    def __init__(self, backend: ReadsLayers, drafting: Drafting) -> None:
        self.num_draft_tokens = drafting.num_draft_tokens
        has_trees = drafting.tree_width > 0
        self.needs = DrafterNeeds(hidden_layers=backend.hidden_layers, trees=has_trees)
        chain = NextnConfig(num_draft_tokens=drafting.num_draft_tokens, proposals=drafting.proposals)
        self._chain = NextnDrafter(chain, backend)
        self._growth, self._trees = drafting.growth, None
        if has_trees:
            if not isinstance(backend, GrowsTrees):
                raise UnsupportedError(
                    f"{type(backend).__name__} drafts chains; set tree_width=0 (conf: drafter.tree_width)"
                )
            self._trees = backend

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Catch up over the pass, then draft; the catch-up happens even when nobody wants tokens."""
        if self._trees is None:
            return self._chain.propose(inputs)
        logits_BV = self._trees.begin_draft(inputs)
        return grow(self._trees, inputs, logits_BV, self._growth) if any(inputs.wanted_B) else None

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop: the next catch-up rewrites the draft cache of a reused row."""
