"""Parts of a round that mark where its phases end: a target, a verifier, a drafter and its model around real ones.

A mark launches nothing. It stops a round that is to end there, so that a prefix of a round and the whole run one code.
"""

from collections.abc import Sequence

import torch

from specdec.api import (
    Drafter,
    DraftInput,
    GraphDraftBackend,
    GraphTarget,
    PackedPass,
    Proposal,
    RoundLayout,
    Tables,
    TargetOutput,
    TargetSampling,
    Verdict,
)
from specdec.verifiers import GumbelVerifier

STAGE, TARGET, VERIFICATION, RESULT = "integers and tables", "target pass", "verification", "result"
CATCH_UP = "catch-up and first draft token"


def draft_step(number: int) -> str:
    """Name of the phase that draws draft token ``number``."""
    return CATCH_UP if number == 1 else f"draft step {number}"


class PrefixEnd(Exception):
    """Stops a round where its prefix ends; not an error."""


class Marks:
    """Ends of phases as a round reaches them; at that of ``last`` it stops."""

    def __init__(self, last: str) -> None:
        self._last = last
        self._num_drawn = 0

    def end(self, phase: str) -> None:
        """The round is at the end of a phase; raises PrefixEnd where it is to stop."""
        if phase == self._last:
            raise PrefixEnd

    def begin_drafts(self) -> None:
        """The next draft token is the first."""
        self._num_drawn = 0

    def end_draft(self) -> None:
        """The round is at the end of the phase of the next draft token."""
        self._num_drawn += 1
        self.end(draft_step(self._num_drawn))


class MarkedTarget:
    """A target whose pass is a phase; what comes before it is one, too."""

    def __init__(self, target: GraphTarget, marks: Marks) -> None:
        self.vocab_size, self.max_context, self.device = target.vocab_size, target.max_context, target.device
        self.cache_groups = target.cache_groups
        self._target, self._marks = target, marks

    def forward(
        self, layout: RoundLayout, tokens_T: torch.Tensor, tables: Tables, *, hidden_layers: tuple[int, ...] = ()
    ) -> TargetOutput:
        """The target's own."""
        return self._target.forward(layout, tokens_T, tables, hidden_layers=hidden_layers)

    def forward_packed(self, packed: PackedPass, *, hidden_layers: tuple[int, ...] = ()) -> TargetOutput:
        """The target's own, between two marks."""
        self._marks.end(STAGE)
        output = self._target.forward_packed(packed, hidden_layers=hidden_layers)
        self._marks.end(TARGET)
        return output


class MarkedVerifier(GumbelVerifier):
    """The rule, with a mark behind its verdict."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """See ``api.Verifier.judge``."""
        verdict = super().judge(logits_BNV, proposal, sampling, positions_B)
        self._marks.end(VERIFICATION)
        return verdict


class MarkedDraftBackend:
    """A draft model of which every step, but not its catch-up, has a mark before it."""

    def __init__(self, backend: GraphDraftBackend, marks: Marks) -> None:
        self.cache_groups = backend.cache_groups
        self._backend, self._marks = backend, marks

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """The model's own."""
        self._marks.begin_drafts()
        return self._backend.begin_draft(inputs)

    def begin_packed_draft(
        self,
        packed: PackedPass,
        *,
        hidden_TD: torch.Tensor,
        next_tokens_T: torch.Tensor,
        num_committed_B: torch.Tensor,
    ) -> torch.Tensor:
        """The model's own."""
        return self._backend.begin_packed_draft(
            packed, hidden_TD=hidden_TD, next_tokens_T=next_tokens_T, num_committed_B=num_committed_B
        )

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The model's own, behind the mark of the token before."""
        self._marks.end_draft()
        self._backend.advance_draft_forward_metadata(seq_lens_B)

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """The model's own."""
        return self._backend.forward(tokens_B)


class MarkedDrafter:
    """A drafter with a mark behind its last token."""

    def __init__(self, drafter: Drafter, marks: Marks) -> None:
        self.num_draft_tokens, self.needs = drafter.num_draft_tokens, drafter.needs
        self._drafter, self._marks = drafter, marks

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """The drafter's own."""
        proposal = self._drafter.propose(inputs)
        self._marks.end_draft()
        return proposal

    def forget(self, rows: Sequence[int]) -> None:
        """The drafter's own."""
        self._drafter.forget(rows)
