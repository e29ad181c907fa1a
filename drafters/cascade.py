"""Cascade: asks several drafters in turn; each request takes the draft of the first that has one.

Cheap and often silent drafters (lookup) go before ones that always answer (a model). Knows nothing of how they draft.
Which drafter a request takes may depend on whether an earlier one had a proposal at all, which lookup decides from
committed tokens; a drafter that withdraws its draws after looking at them is wrong here as everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from drafters.common import check_num_draft_tokens, own_limits
from drafters.wrapping import check_is_drafter, hidden_of, joined_needs, limited, sees_every_pass
from specdec.api import Drafter, DrafterConfig, DrafterNeeds, DraftInput, DraftSetup, Proposal, SiblingDraws
from specdec.errors import ConfigError, UnsupportedError

NOBODY = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeConfig:
    """Settings of a cascade. Raises ConfigError for fewer than two drafters, or two with a draft model.

    drafters          configurations by name; they are asked in alphabetical order of their names
    num_draft_tokens  most tokens per round, 1..31; each drafter keeps to its own limit, too
    """

    drafters: Mapping[str, DrafterConfig]
    num_draft_tokens: int = 3

    def __post_init__(self) -> None:
        check_num_draft_tokens(self.num_draft_tokens)
        if not isinstance(self.drafters, Mapping) or len(self.drafters) < 2:
            raise ConfigError(
                f"drafters must be a mapping of at least two names to drafters, got {self.drafters!r} "
                f"(conf: drafter.drafters)"
            )
        for name, member in self.drafters.items():
            check_is_drafter(f"drafters.{name}", member)
        with_model = [name for name in self.names if self.drafters[name].needs.draft_backend]
        if len(with_model) > 1:
            raise ConfigError(
                f"only one drafter of a cascade may run a draft model, got {' and '.join(with_model)} "
                f"(conf: drafter.drafters)"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order in which they are asked."""
        return tuple(sorted(self.drafters))

    @property
    def needs(self) -> DrafterNeeds:
        return joined_needs([self.drafters[name] for name in self.names])

    def build(self, setup: DraftSetup) -> "CascadeDrafter":
        """Make all live drafters."""
        members = [self.drafters[name].build(setup) for name in self.names]
        return CascadeDrafter(self, members, setup)


class CascadeDrafter:
    """Keeps nothing between rounds; its drafters keep what they need."""

    def __init__(self, config: CascadeConfig, members: Sequence[Drafter], setup: DraftSetup) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        # Of the live drafters: a head declares the layers that its checkpoint names.
        self.needs = joined_needs(members)
        self._members = members
        self._device, self._vocab_size = setup.device, setup.vocab_size

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Ask each drafter for the requests that have no draft yet; one that follows every pass is asked always."""
        left = list(own_limits(inputs))
        chosen = [NOBODY] * len(left)
        proposals: list[Proposal] = []
        for member in self._members:
            if not (any(left) or sees_every_pass(member.needs)):
                continue
            proposal = member.propose(self._shown_to(member, inputs, left))
            if proposal is None:
                continue
            for b, count in enumerate(proposal.num_drafted_B.tolist()):
                if left[b] and count:
                    left[b], chosen[b] = 0, len(proposals)
            proposals.append(proposal)
        return self._joined(proposals, chosen)

    def forget(self, rows: Sequence[int]) -> None:
        """Passed on to all."""
        for member in self._members:
            member.forget(rows)

    def _shown_to(self, member: Drafter, inputs: DraftInput, left: Sequence[int]) -> DraftInput:
        limits = [min(limit, member.num_draft_tokens, self.num_draft_tokens) for limit in left]
        hidden_TD = hidden_of(inputs.hidden_TD, self.needs.hidden_layers, member.needs.hidden_layers)
        return replace(limited(inputs, limits), hidden_TD=hidden_TD)

    def _joined(self, proposals: Sequence[Proposal], chosen: Sequence[int]) -> Proposal | None:
        """Each request's row of the proposal that it took."""
        taken = sorted(set(chosen) - {NOBODY})
        if not taken:
            return None
        width = max(proposals[index].tokens_BK.shape[1] for index in taken)
        with_laws = any(proposals[index].probs_BKV is not None for index in taken)
        with_parents = any(proposals[index].parents_BK is not None for index in taken)
        chosen_B = torch.tensor(chosen, device=self._device)
        tokens_BK = torch.zeros(len(chosen), width, dtype=torch.int64, device=self._device)
        num_drafted_B = torch.zeros(len(chosen), dtype=torch.int64, device=self._device)
        probs_BKV = torch.zeros(*tokens_BK.shape, self._vocab_size, device=self._device) if with_laws else None
        parents_BK = torch.arange(-1, width - 1, device=self._device).repeat(len(chosen), 1) if with_parents else None
        for index in taken:
            rows_X, proposal = (chosen_B == index).nonzero()[:, 0], proposals[index]
            own = proposal.tokens_BK.shape[1]
            tokens_BK[rows_X, :own] = proposal.tokens_BK[rows_X]
            num_drafted_B[rows_X] = proposal.num_drafted_B[rows_X]
            if probs_BKV is not None:
                probs_BKV[rows_X, :own] = _laws(proposal, rows_X, self._vocab_size).to(probs_BKV.dtype)
            if parents_BK is not None and proposal.parents_BK is not None:
                parents_BK[rows_X, :own] = proposal.parents_BK[rows_X]
        return Proposal(
            tokens_BK=tokens_BK,
            num_drafted_B=num_drafted_B,
            probs_BKV=probs_BKV,
            parents_BK=parents_BK,
            sibling_draws=_common_draws([proposals[index] for index in taken]) if with_laws and with_parents else None,
        )


def _common_draws(proposals: Sequence[Proposal]) -> SiblingDraws:
    """How siblings of all proposals were drawn; of chains, and of point masses, either is true.

    Raises UnsupportedError for proposals of one round that differ.
    """
    draws = {proposal.sibling_draws for proposal in proposals if proposal.sibling_draws is not None}
    if len(draws) > 1:
        raise UnsupportedError(
            "the drafters of a cascade draw siblings in one way, all with or all without replacement"
        )
    return draws.pop() if draws else SiblingDraws.WITHOUT_REPLACEMENT


def _laws(proposal: Proposal, rows_X: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Laws of some requests' tokens; a drafter that reports none has point masses."""
    if proposal.probs_BKV is not None:
        return proposal.probs_BKV[rows_X]
    # Padding may hold any number; what lies beyond a draft is never read.
    tokens_XK = proposal.tokens_BK[rows_X].clamp(0, vocab_size - 1)
    return torch.nn.functional.one_hot(tokens_XK, vocab_size)
