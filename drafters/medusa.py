"""Medusa drafting: every head predicts one further token from the same state of the target; as a chain or a tree.

Source: Cai et al., Medusa (2024), arXiv:2401.10774.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafters.common import check_num_draft_tokens, check_tree
from drafters.eagle3 import Drafting, ReadsLayers, StateDrafter
from specdec.api import Drafter, DrafterNeeds, DraftSetup
from specdec.checks import one_of
from specdec.errors import ConfigError

LOADER = "experiments.heads.load_medusa_heads"


@runtime_checkable
class HasHeads(ReadsLayers, Protocol):
    """Heads over the target's states.

    max_draft_tokens  how many heads there are
    """

    max_draft_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaConfig:
    """Settings of Medusa drafting. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round: of a chain at most one per head, of a tree its nodes
    proposals         ``sampled`` draws with the verifier's coupling, ``greedy`` takes each head's argmax
    checkpoint        folder of the heads
    loader            importable function that makes the ``DraftBackend``; called by ``experiments.build``
    tree_width        0: chains; else followers of a node, of a dynamic tree of at most num_draft_tokens nodes
    tree_depth        levels of the tree
    """

    num_draft_tokens: int = 3
    proposals: str = "sampled"
    checkpoint: str = ""
    loader: str = LOADER
    tree_width: int = 0
    tree_depth: int = 4

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("proposals", self.proposals, ("sampled", "greedy"), where="drafter.proposals")
        check_tree(self.tree_width, self.tree_depth)

    @property
    def needs(self) -> DrafterNeeds:
        """What holds without a checkpoint; the live drafter declares the layer."""
        return DrafterNeeds(trees=self.tree_width > 0)

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter over ``setup.draft_backend``; raises ConfigError for none, or too few heads."""
        heads = setup.draft_backend
        if not isinstance(heads, HasHeads):
            raise ConfigError("drafter medusa needs heads made for this target (conf: drafter.checkpoint)")
        name = "tree_depth" if self.tree_width else "num_draft_tokens"
        depth = self.tree_depth if self.tree_width else self.num_draft_tokens
        if depth > heads.max_draft_tokens:
            raise ConfigError(
                f"{name} must be at most {heads.max_draft_tokens}, one per Medusa head, got {depth} "
                f"(conf: drafter.{name})"
            )
        drafting = Drafting(
            num_draft_tokens=self.num_draft_tokens,
            proposals=self.proposals,
            tree_width=self.tree_width,
            tree_depth=self.tree_depth,
        )
        return StateDrafter(heads, drafting)
