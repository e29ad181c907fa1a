"""NextN (multi-token prediction) drafting: one catch-up pass, then K - 1 single-token steps of a draft model.

The model is any ``DraftBackend``; this file knows only the order of its calls.
Source: DeepSeek-V3 technical report, section 2.2, used recursively as in EAGLE (Li et al., 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from drafters.common import check_num_draft_tokens, drawn_proposal, own_limits
from specdec.api import (
    LAST_LAYER,
    Draft,
    DraftBackend,
    Drafter,
    DrafterNeeds,
    DraftInput,
    DraftSetup,
    GraphDraftBackend,
    Proposal,
)
from specdec.checks import one_of
from specdec.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class NextnConfig:
    """Settings of NextN drafting. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round, 1..31
    proposals         ``sampled`` draws with the verifier's coupling, ``greedy`` takes the draft's argmax
    """

    num_draft_tokens: int = 3
    proposals: str = "sampled"

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("proposals", self.proposals, ("sampled", "greedy"), where="drafter.proposals")

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(hidden_layers=(LAST_LAYER,), draft_backend=True, recordable=True)

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter over ``setup.draft_backend``; raises ConfigError when there is none."""
        if setup.draft_backend is None:
            raise ConfigError(
                "drafter nextn needs a draft model, got a target checkpoint without a NextN layer "
                "(conf: drafter, target.checkpoint); drafters ngram, draft_model and none need none"
            )
        return NextnDrafter(self, setup.draft_backend)


class NextnDrafter:
    """Owns no state between rounds: the draft caches belong to the backend and are addressed by position."""

    def __init__(self, config: NextnConfig, backend: DraftBackend) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = replace(config.needs, recordable=isinstance(backend, GraphDraftBackend))
        self._greedy = config.proposals == "greedy"
        self._backend = backend

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Catch up over the pass, then draft; the catch-up happens even when nobody wants tokens.

        The host's limits decide how many steps there are, the device's how many tokens of each request count.
        """
        logits_BV = self._backend.begin_draft(inputs)
        limits = [min(limit, self.num_draft_tokens) for limit in own_limits(inputs)]
        num_steps = max(limits, default=0)
        if num_steps == 0:
            return None
        limits_B = inputs.limits_B.clamp(max=self.num_draft_tokens)
        drafts = self._draft(inputs, logits_BV, limits_B, num_steps)
        return drawn_proposal(drafts, limits_B)

    def _draft(
        self, inputs: DraftInput, logits_BV: torch.Tensor, limits_B: torch.Tensor, num_steps: int
    ) -> list[Draft]:
        """Draw token i for position ``seq_lens + 1 + i``; token i is fed at position ``seq_lens + i``."""
        drafts = [self._draw(inputs, logits_BV, offset=1)]
        # A request that drafts less than the others stays on its last provisional row: it has no page, and maybe
        # no position, for more, and its committed rows must not be touched.
        last_step_B = (limits_B - 1).clamp(min=1)
        for step in range(1, num_steps):
            self._backend.advance_draft_forward_metadata(inputs.seq_lens_B + last_step_B.clamp(max=step))
            logits_BV = self._backend.forward(drafts[-1].tokens_B)
            drafts.append(self._draw(inputs, logits_BV, offset=step + 1))
        return drafts

    def _draw(self, inputs: DraftInput, logits_BV: torch.Tensor, *, offset: int) -> Draft:
        return inputs.sampling.draw(logits_BV, inputs.seq_lens_B + offset, greedy=self._greedy)

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop: the next catch-up rewrites the draft cache of a reused row."""
