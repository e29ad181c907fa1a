"""Adaptive draft lengths: wraps a drafter and decides for each request and round how many of its tokens to verify.

What a decision may depend on, so that the output keeps the target's law under every exact rule. Whether the k-th
drafted token of a round is verified may depend on

    the committed tokens, and the outcomes of earlier rounds (what was verified and accepted),
    the tokens drafted before it in this round,
    the laws from which this round's tokens up to and including the k-th are drawn,

and on nothing else: not on the k-th token, not on a later one, not on anything that the target says in this round,
and not on other requests (their text would then depend on what shares their batch). A token withdrawn after a look at
it leaves the others too often: ``python -m experiments.certify drafter=adaptive`` enumerates the policies, and the
wrong rules that it must find have three that look. ``drafters.lengths`` sees lengths of earlier rounds only. The
confidence threshold compares the largest probability of a token's law, which is known before the token is drawn.
The record of a request is dropped with its row, so a preempted request begins anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from drafters.common import check_num_draft_tokens, own_limits
from drafters.lengths import FixedLength, LengthPolicy, MovingAverage, Outcome, UpperConfidence
from drafters.wrapping import check_is_drafter, limited, on_the_host
from specdec.api import (
    Draft,
    Drafter,
    DrafterConfig,
    DrafterNeeds,
    DraftInput,
    DraftSetup,
    Proposal,
    SamplingView,
)
from specdec.checks import integer, number, one_of
from specdec.errors import ConfigError, UnsupportedError

POLICIES = ("fixed", "average", "ucb", "confidence")
MAX_WINDOW = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveConfig:
    """Settings of adaptive draft lengths. Raises ConfigError for values out of range.

    wrapped             configuration of the drafter that proposes
    policy              ``fixed``: num_draft_tokens always; ``average``: one more than was accepted on average;
                        ``ucb``: bandit over lengths, for tokens per cost; ``confidence``: stop before a token whose
                        draft law is flat
    num_draft_tokens    most tokens per round, 1..31, at most those of the wrapped drafter
    min_draft_tokens    fewest tokens that ``average`` and ``ucb`` allow, 0..num_draft_tokens
    window              rounds that ``average`` looks back
    token_cost          cost of drafting and verifying one token in plain target passes, for ``ucb``
    exploration         width of the confidence bound of ``ucb``, in tokens per plain target pass
    threshold           ``confidence`` drafts while the most probable token has at least this probability
    """

    wrapped: DrafterConfig
    policy: str = "ucb"
    num_draft_tokens: int = 3
    min_draft_tokens: int = 1
    window: int = 8
    token_cost: float = 0.2
    exploration: float = 0.3
    threshold: float = 0.4

    def __post_init__(self) -> None:
        check_is_drafter("wrapped", self.wrapped)
        check_num_draft_tokens(self.num_draft_tokens)
        one_of("policy", self.policy, POLICIES, where="drafter.policy")
        if self.wrapped.needs.trees:
            raise ConfigError(
                f"an adaptive drafter chooses the lengths of chains, and {type(self.wrapped).__name__} proposes trees "
                f"(conf: drafter.wrapped)"
            )
        most, where = self.num_draft_tokens, "drafter.min_draft_tokens"
        integer("min_draft_tokens", self.min_draft_tokens, low=0, high=most, where=where)
        integer("window", self.window, low=1, high=MAX_WINDOW, where="drafter.window")
        number("token_cost", self.token_cost, low=0.0, where="drafter.token_cost")
        number("exploration", self.exploration, low=0.0, where="drafter.exploration")
        number("threshold", self.threshold, low=0.0, high=1.0, where="drafter.threshold")
        if self.wrapped.num_draft_tokens < most:
            raise ConfigError(
                f"num_draft_tokens must be at most that of the wrapped drafter, {self.wrapped.num_draft_tokens}, "
                f"got {most} (conf: drafter.num_draft_tokens, drafter.wrapped.num_draft_tokens)"
            )

    @property
    def needs(self) -> DrafterNeeds:
        return on_the_host(self.wrapped.needs)

    def build(self, setup: DraftSetup) -> "AdaptiveDrafter":
        """Make the live drafter around a live wrapped one."""
        return AdaptiveDrafter(self, self.wrapped.build(setup))

    def new_policy(self) -> LengthPolicy:
        """The policy of one request, with an empty record."""
        least, most = self.min_draft_tokens, self.num_draft_tokens
        if self.policy == "average":
            return MovingAverage(least=least, most=most, window=self.window)
        if self.policy == "ucb":
            return UpperConfidence(least=least, most=most, token_cost=self.token_cost, exploration=self.exploration)
        return FixedLength(most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What was asked for a row in its newest round: from which position on, and how many tokens of how many."""

    position: int
    allowed: int
    proposed: int


class AdaptiveDrafter:
    """Keeps a policy with its record, and what was asked last, for each row between rounds."""

    def __init__(self, config: AdaptiveConfig, wrapped: Drafter) -> None:
        self.num_draft_tokens = config.num_draft_tokens
        self.needs = on_the_host(wrapped.needs)
        self._config = config
        self._wrapped = wrapped
        self._policies: dict[int, LengthPolicy] = {}
        self._asked: dict[int, Asked] = {}

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Enter what became of the last draft, choose the lengths, and let the wrapped drafter propose."""
        self._observe(inputs)
        limits = [
            min(limit, self._policy(row).length()) if limit else 0
            for row, limit in zip(inputs.layout.rows, own_limits(inputs), strict=True)
        ]
        asked = limited(inputs, limits)
        if self._config.policy == "confidence":
            proposal = self._propose_confident(asked)
        else:
            proposal = self._wrapped.propose(asked)
        self._remember(inputs, limits, proposal)
        return proposal

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the records of these rows, here and in the wrapped drafter."""
        for row in rows:
            self._policies.pop(row, None)
            self._asked.pop(row, None)
        self._wrapped.forget(rows)

    def _policy(self, row: int) -> LengthPolicy:
        if row not in self._policies:
            self._policies[row] = self._config.new_policy()
        return self._policies[row]

    def _observe(self, inputs: DraftInput) -> None:
        layout = inputs.layout
        passes = zip(layout.rows, layout.start_positions, layout.query_lens, strict=True)
        for (row, start, length), committed in zip(passes, inputs.num_committed_B.tolist(), strict=True):
            asked = self._asked.pop(row, None)
            # Within a cascade the draft of a round may have been another drafter's.
            if asked is None or asked.position != start or length - 1 > asked.proposed:
                continue
            verified = length - 1
            outcome = Outcome(allowed=asked.allowed, verified=verified, accepted=min(committed - 1, verified))
            self._policy(row).observe(outcome)

    def _remember(self, inputs: DraftInput, limits: Sequence[int], proposal: Proposal | None) -> None:
        counts = [0] * len(limits) if proposal is None else proposal.num_drafted_B.tolist()
        lines = zip(inputs.layout.rows, inputs.seq_lens_B.tolist(), limits, counts, strict=True)
        for (row, position, allowed, proposed), wanted in zip(lines, inputs.wanted_B, strict=True):
            if wanted:
                # For a request that may have nothing a drafter may report anything.
                self._asked[row] = Asked(position=position, allowed=allowed, proposed=min(proposed, allowed))

    def _propose_confident(self, inputs: DraftInput) -> Proposal | None:
        """The wrapped drafter's proposal up to the first token whose law was flat."""
        view = ConfidenceView(inputs.sampling, inputs.seq_lens_B)
        proposal = self._wrapped.propose(replace(inputs, sampling=view))
        if proposal is None:
            return None
        if proposal.parents_BK is not None:
            raise UnsupportedError("policy=confidence cuts chains; the wrapped drafter proposed a tree")
        confidence_BK = view.confidence(proposal)
        sure_BK = (confidence_BK >= self._config.threshold).long().cumprod(dim=1)
        return replace(proposal, num_drafted_B=torch.minimum(proposal.num_drafted_B, sure_BK.sum(dim=1)))


class ConfidenceView:
    """A sampling view that notes the largest probability of every law that a draft is drawn from.

    Under noise shared with the target the law of a draft is not reported, so it is read where the token is drawn: the
    softmax of the draft's logits at temperature 1.
    """

    def __init__(self, inner: SamplingView, seq_lens_B: torch.Tensor) -> None:
        self._inner = inner
        self._seq_lens_B = seq_lens_B
        self._noted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """See ``api.SamplingView.draw``."""
        # Position seq_lens holds the newest token, so the first drafted one comes at seq_lens + 1.
        self._noted.append((positions_B - self._seq_lens_B - 1, logits_BV.softmax(dim=-1).amax(dim=-1)))
        return self._inner.draw(logits_BV, positions_B, greedy=greedy)

    def confidence(self, proposal: Proposal) -> torch.Tensor:
        """Largest probability of the law of each drafted token, [B, K]; raises UnsupportedError if none is known."""
        if self._noted:
            shown_BK = torch.ones(proposal.tokens_BK.shape, device=proposal.tokens_BK.device)
            columns_K = torch.arange(shown_BK.shape[1], device=shown_BK.device)
            for step_B, highest_B in self._noted:
                shown_BK = torch.where(columns_K == step_B[:, None], highest_B[:, None].to(shown_BK.dtype), shown_BK)
            return shown_BK
        if proposal.probs_BKV is None:
            raise UnsupportedError(
                "policy=confidence needs a drafter that draws from probabilities, and the wrapped one has none "
                "(conf: drafter.policy, drafter.wrapped)"
            )
        return proposal.probs_BKV.amax(dim=-1)
