"""Plain decoding: a drafter that drafts nothing; the baseline of every speed-up."""

from collections.abc import Sequence
from dataclasses import dataclass

from drafters.common import MAX_DRAFT_TOKENS
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal
from specdec.checks import integer


@dataclass(frozen=True, kw_only=True, slots=True)
class NoneConfig:
    """Settings of plain decoding.

    num_draft_tokens  accepted and ignored, so that a sweep over draft lengths may include this drafter
    """

    num_draft_tokens: int = 0

    def __post_init__(self) -> None:
        integer(
            "num_draft_tokens", self.num_draft_tokens, low=0, high=MAX_DRAFT_TOKENS, where="drafter.num_draft_tokens"
        )

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def build(self, setup: DraftSetup) -> "NoneDrafter":
        """Make the live drafter; ``setup`` is not read."""
        return NoneDrafter()


class NoneDrafter:
    """Drafts nothing, so every round commits exactly one token per request."""

    num_draft_tokens = 0
    needs = DrafterNeeds()

    def propose(self, inputs: DraftInput) -> Proposal | None:
        return None

    def forget(self, rows: Sequence[int]) -> None:
        pass
