"""Medusa drafting: every head predicts one further token from the same state of the target; as a chain or a tree.

Source: Cai et al., Medusa (2024), arXiv:2401.10774.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafters.eagle3 import HeadConfig, ReadsLayers, StateDrafter
from specdec.api import Drafter, DraftSetup
from specdec.errors import ConfigError

LOADER = "experiments.heads.load_medusa_heads"


@runtime_checkable
class HasHeads(ReadsLayers, Protocol):
    """Heads over the target's states.

    max_draft_tokens  how many heads there are
    """

    max_draft_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaConfig(HeadConfig):
    """Settings of Medusa drafting; see ``HeadConfig``. A chain has at most one token per head.

    loader  importable function that makes the ``DraftBackend``; called by ``experiments.build``
    """

    loader: str = LOADER

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
        return StateDrafter(heads, self.drafting)
