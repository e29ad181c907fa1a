"""Drafting with an independent smaller model, which reads nothing but token ids.

The model is any ``DraftBackend`` that catches up from ``DraftInput.histories``; this file knows only the order of its
calls. Sources: Leviathan et al. (2023); Chen et al. (2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drafters.common import check_num_draft_tokens, check_tree, drawn_proposal, own_limits
from drafters.sampled_tree import SampledShape, draw_tree
from drafters.tree_growth import GrowsTrees, Growth, grow
from specdec.api import (
    Draft,
    DraftBackend,
    Drafter,
    DrafterNeeds,
    DraftInput,
    DraftSetup,
    Proposal,
    SiblingDraws,
)
from specdec.checks import one_of
from specdec.errors import ConfigError, UnsupportedError

LOADER = "experiments.hf.load_draft"
CHOSEN = "chosen"


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftModelConfig:
    """Settings of drafting with another model. Raises ConfigError for values out of range.

    num_draft_tokens  tokens proposed per round, 1..31
    proposals         ``sampled`` draws with the verifier's coupling, ``greedy`` takes the draft's argmax
    checkpoint        folder of the draft model, or a name that ``target.checkpoint`` knows
    loader            importable function that makes the ``DraftBackend``; called by ``experiments.build``
    tree_width        0: chains; else siblings that follow a node, of a tree of at most num_draft_tokens nodes
    tree_depth        levels of the tree
    siblings          ``chosen`` keeps the likeliest nodes of all; ``without_replacement`` and ``with_replacement``
                      draw siblings from the draft's law and keep what was drawn (under verifier=siblings)
    """

    num_draft_tokens: int = 3
    proposals: str = "sampled"
    checkpoint: str = ""
    loader: str = LOADER
    tree_width: int = 0
    tree_depth: int = 4
    siblings: str = "chosen"

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("proposals", self.proposals, ("sampled", "greedy"), where="drafter.proposals")
        check_tree(self.tree_width, self.tree_depth)
        one_of("siblings", self.siblings, (CHOSEN, *(draws.value for draws in SiblingDraws)), where="drafter.siblings")

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(history=True, trees=self.tree_width > 0)

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter over ``setup.draft_backend``; raises ConfigError when there is none."""
        if setup.draft_backend is None:
            raise ConfigError("drafter draft_model needs a draft model (conf: drafter.checkpoint)")
        if not self.tree_width:
            return DraftModelDrafter(self, setup.draft_backend)
        if not isinstance(setup.draft_backend, GrowsTrees):
            name = type(setup.draft_backend).__name__
            raise UnsupportedError(f"{name} drafts chains; set tree_width=0 (conf: drafter.tree_width)")
        return TreeModelDrafter(self, setup.draft_backend)


class DraftModelDrafter:
    """Owns no state between rounds: the backend knows by comparison what it has been fed."""

    def __init__(self, config: DraftModelConfig, backend: DraftBackend) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self._greedy = config.proposals == "greedy"
        self._backend = backend

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Catch up, then draft token by token: token i, for position ``seq_lens + 1 + i``, is fed there."""
        limits = [min(limit, self.num_draft_tokens) for limit in own_limits(inputs)]
        num_steps = max(limits, default=0)
        if num_steps == 0:
            return None
        logits_BV = self._backend.begin_draft(inputs)
        limits_B = torch.tensor(limits, dtype=torch.int64, device=logits_BV.device)
        # A request that drafts less than the others stays on its last token: it may have no position for more.
        last_step_B = (limits_B - 1).clamp(min=1)
        drafts = [self._draw(inputs, logits_BV, offset=1)]
        for step in range(1, num_steps):
            self._backend.advance_draft_forward_metadata(inputs.seq_lens_B + 1 + last_step_B.clamp(max=step))
            logits_BV = self._backend.forward(drafts[-1].tokens_B)
            drafts.append(self._draw(inputs, logits_BV, offset=step + 1))
        return drawn_proposal(drafts, limits_B)

    def _draw(self, inputs: DraftInput, logits_BV: torch.Tensor, *, offset: int) -> Draft:
        return inputs.sampling.draw(logits_BV, inputs.seq_lens_B + offset, greedy=self._greedy)

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop: another text on a row differs from what was fed, and is fed anew from there."""


class TreeModelDrafter:
    """The same model, several drafts side by side."""

    def __init__(self, config: DraftModelConfig, backend: GrowsTrees) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = config.needs
        self._config, self._backend = config, backend

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Catch up, then grow a tree for every request that wants one."""
        if not any(inputs.wanted_B):
            return None
        config = self._config
        logits_BV = self._backend.begin_draft(inputs)
        width, depth, most = config.tree_width, config.tree_depth, config.num_draft_tokens
        if config.siblings == CHOSEN:
            growth = Growth(width=width, depth=depth, max_nodes=most, greedy=config.proposals == "greedy")
            return grow(self._backend, inputs, logits_BV, growth)
        shape = SampledShape(width=width, depth=depth, max_nodes=most, draws=SiblingDraws(config.siblings))
        return draw_tree(self._backend, inputs, logits_BV, shape)

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing to drop; see ``DraftModelDrafter``."""
