"""All that the author of a drafter, a draft backend or a target imports; knows nothing of any model.

Dimension letters, used as suffixes of tensor names and in shape comments:

    B requests of the round      K drafted tokens per request    N = K + 1 verify width
    T packed tokens of a pass    R rows whose logits are wanted  V vocabulary
    D width of a hidden state    H heads                         S residual streams
    P pages                      C columns of a block table

Four words with one meaning each: *drafted* (proposed by the drafter), *accepted* (drafted and kept, 0..K),
*bonus* (the token the target adds after a fully accepted draft; otherwise that token is the *correction*),
*committed* (accepted + 1, before any stop cuts it).

Positions are zero-based raw token positions. A request with ``L`` known tokens has ``L - 1`` committed
positions in the caches: its newest token is fed by the next pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from specdec.cache.spec import CacheGroupSpec
from specdec.layout import ForwardMode, RoundLayout
from specdec.sampling_types import (
    Coupling,
    Draft,
    SamplingView,
    SiblingDraws,
    Siblings,
    TargetSampling,
    TreeRows,
)
from specdec.trees.draft_tree import ROOT, DraftTree

__all__ = [
    "CacheGroupSpec",
    "Coupling",
    "Draft",
    "DraftBackend",
    "DraftInput",
    "DraftSetup",
    "DraftTree",
    "Drafter",
    "DrafterConfig",
    "DrafterNeeds",
    "ForwardMode",
    "GraphDraftBackend",
    "GraphTarget",
    "GroupTable",
    "LAST_LAYER",
    "PackedPass",
    "Proposal",
    "ROOT",
    "RoundLayout",
    "SamplingView",
    "SiblingDraws",
    "Siblings",
    "Tables",
    "Target",
    "TargetOutput",
    "TargetSampling",
    "TreeRows",
    "TreeTarget",
    "TreeVerifier",
    "Verdict",
    "Verifier",
]

LAST_LAYER = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterNeeds:
    """What a drafter must be given, declared as data.

    hidden_layers  target layers whose output states it reads; LAST_LAYER is the residual after the last layer,
                   before the head (for V4 the S streams, flattened to D = S * hidden_size)
    history        whether it reads token ids of the request (forces the round to be read on the host first)
    draft_backend  whether it runs a model with its own buffers under the target's page ids
    recordable     whether ``propose`` is made of device operations only, decided by ``wanted_B`` and ``max_draft_B``
                   as constants, so that a recording can hold it; then it reads ``limits_B`` for the rest
    trees          whether it may propose trees; then target and verifier must take them, and no round is recorded
                   that verifies one
    """

    hidden_layers: tuple[int, ...] = ()
    history: bool = False
    draft_backend: bool = False
    recordable: bool = False
    trees: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTable:
    """Block table of one cache group for the requests of a pass, in batch order.

    pages_BC  int32 physical page of logical page ``base + column``; -1 where there is none
    base_B    int32 logical page of column 0, for sliding groups only (full history: None)
    """

    pages_BC: torch.Tensor
    base_B: torch.Tensor | None = None


Tables = Mapping[str, GroupTable]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedPass:
    """A pass as device tensors of constant shape, so that it can be recorded once and replayed.

    tokens_T     int64
    positions_T  int32; -1 for a padding token, which sees nothing and writes nothing
    reqs_T       int32 row of ``tables`` that each token belongs to; padding tokens have a valid row too
    tables       block tables; a group's table may be wider than its requests need (-1 there)
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    reqs_T: torch.Tensor
    tables: Tables


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """Drafted tokens of the next verify pass: of each request a chain, or a tree whose nodes are the tokens.

    tokens_BK      int64; entries at or beyond ``num_drafted_B`` are ignored
    num_drafted_B  int64, 0..K per request: tokens, for a tree its nodes
    probs_BKV      float32 law of each token, or None (point masses). Siblings have the law of one draw, before any of
                   them was taken out of it
    parents_BK     int64 index of each node's parent (ROOT, -1: the newest known token), in any order, or None for
                   chains. Only a drafter that declares ``needs.trees`` gives it
    sibling_draws  how siblings were drawn; needed for a tree with ``probs_BKV``, else None
    """

    tokens_BK: torch.Tensor
    num_drafted_B: torch.Tensor
    probs_BKV: torch.Tensor | None = None
    parents_BK: torch.Tensor | None = None
    sibling_draws: SiblingDraws | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftInput:
    """What a drafter sees after a target pass: prompt chunks and verified rows alike (ragged catch-up).

    In a recorded round all host values are constants of the recording: ``layout`` has B requests of N rows at
    positions that mean nothing, every request wants ``max_draft_B`` tokens, and what holds for the round at hand
    is in ``packed`` and in the tensors. A padding request has length 0, nothing committed and no pages.

    layout           the pass that the target just ran (rows, positions, query lengths). Of a tree it has the accepted
                     path alone, as if a chain had been verified; so have the tensors by packed row
    next_tokens_T    int64; entry of packed row t is the token at position p(t) + 1
    hidden_TD        target states of the declared layers, concatenated in declared order; None if none declared
    num_committed_B  int64; leading rows of each request's slice that are final (chunk length for a prompt chunk)
    last_tokens_B    int64 newest token of each request; it sits at position ``seq_lens_B``
    seq_lens_B       int64 positions whose target K/V is committed
    wanted_B         whether the request wants a proposal (False: in mid-prompt, or finished)
    max_draft_B      most tokens (nodes) that may be drafted for the request now (page, context and width limits)
    limits_B         int64 the same on the device: ``max_draft_B`` where wanted, else 0
    sampling         how each request samples
    histories        per request all known tokens, prompt and output; read only; empty unless declared needed
    tables           block tables of the pass, shared with the target
    packed           the pass as device tensors in a recorded round, [B * N] request-major; None in an eager one
    """

    layout: RoundLayout
    next_tokens_T: torch.Tensor
    hidden_TD: torch.Tensor | None
    num_committed_B: torch.Tensor
    last_tokens_B: torch.Tensor
    seq_lens_B: torch.Tensor
    wanted_B: tuple[bool, ...]
    max_draft_B: tuple[int, ...]
    limits_B: torch.Tensor
    sampling: SamplingView
    histories: Sequence[Sequence[int]]
    tables: Tables
    packed: PackedPass | None = None

    def newest_rows(self) -> torch.Tensor:
        """Packed row [B] int64 of each request's newest committed token in an eager round.

        It never leaves the request's own rows: a count of 0 (nothing committed at the context limit) takes the first
        of them, one beyond them the last.
        """
        starts_B1 = torch.tensor(self.layout.query_starts, dtype=torch.int64).to(self.num_committed_B.device)
        newest_B = starts_B1[:-1] + self.num_committed_B.clamp(min=1).minimum(starts_B1.diff()) - 1
        return newest_B.clamp(min=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetOutput:
    """Result of a target pass.

    logits_RV  float32, one row per entry of ``layout.logit_rows``
    hidden_TD  states of the requested layers for every packed token, concatenated; None if none requested
    """

    logits_RV: torch.Tensor
    hidden_TD: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Outcome of verification.

    tokens_BN        int64; the first ``num_accepted_B + 1`` entries of a row are committed, the rest is unspecified
    num_accepted_B   int64, 0..num_drafted; of a tree the nodes of the accepted path
    logprobs_BN      float32 log-probability under the target's processed law of each committed token, or None
    overlap_BK       float32 sum over x of min(p, q) at each drafted position, or None without draft laws or for trees
    path_BK          int64 nodes of the accepted path, from the first one on; None for chains. Entries at or beyond
                     ``num_accepted_B`` are unspecified
    """

    tokens_BN: torch.Tensor
    num_accepted_B: torch.Tensor
    logprobs_BN: torch.Tensor | None = None
    overlap_BK: torch.Tensor | None = None
    path_BK: torch.Tensor | None = None


@runtime_checkable
class Target(Protocol):
    """A model that verifies. Its caches are addressed only through the tables of the pass."""

    vocab_size: int
    max_context: int
    device: torch.device
    cache_groups: tuple[CacheGroupSpec, ...]

    def forward(
        self,
        layout: RoundLayout,
        tokens_T: torch.Tensor,
        tables: Tables,
        *,
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run one pass (prompt chunks, decode rows, packed verify rows, or a mix) and write the caches in place."""


@runtime_checkable
class TreeTarget(Target, Protocol):
    """A target that verifies trees: its caches hold siblings side by side until one path is kept.

    Its ``forward`` takes layouts with trees. A token of a tree attends to what ``layout.seen`` says and has the
    position that ``layout.positions`` says; what it leaves in the caches lies at ``layout.places``, which no two tokens
    share and for which the tables have pages.
    """

    def keep_paths(self, layout: RoundLayout, paths: Sequence[Sequence[int]], tables: Tables) -> None:
        """After the verdict on a pass with trees, move the accepted paths to where chains would have left them.

        paths   [B] nodes of the accepted path of each request that has a tree, empty for the others: what node
                ``paths[b][i]`` left at place ``start + 1 + node`` belongs to position ``start + 1 + i``
        layout, tables  those of the pass
        """


@runtime_checkable
class GraphTarget(Target, Protocol):
    """A target whose pass can be recorded in a CUDA graph and replayed."""

    def forward_packed(self, packed: PackedPass, *, hidden_layers: tuple[int, ...] = ()) -> TargetOutput:
        """Run a pass of constant shape and write the caches in place; device work only.

        Nothing is read from the device, copied to it from the host or decided by a value, so that the call may be
        recorded. ``logits_RV`` and ``hidden_TD`` have a row for every packed token (R = T); those of padding tokens
        (position -1) are unspecified but finite.
        """


@runtime_checkable
class DraftBackend(Protocol):
    """A draft model with its own buffers under the target's page ids."""

    cache_groups: tuple[CacheGroupSpec, ...]

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Catch up over the rows of the pass; return logits_BV of each request's newest committed row."""

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """Prepare a single-token step in place; lengths include the token about to be forwarded."""

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One draft step at position ``seq_lens_B - 1``; returns logits_BV."""


@runtime_checkable
class GraphDraftBackend(DraftBackend, Protocol):
    """A draft model whose catch-up and steps can be recorded; ``begin_draft`` dispatches on ``DraftInput.packed``."""

    def begin_packed_draft(
        self,
        packed: PackedPass,
        *,
        hidden_TD: torch.Tensor,
        next_tokens_T: torch.Tensor,
        num_committed_B: torch.Tensor,
    ) -> torch.Tensor:
        """``begin_draft`` of a packed pass of T = B * N tokens, request-major; device work only.

        Returns logits_BV of packed row ``b * N + clamp(num_committed_B[b], 1, N) - 1``, unspecified but finite for a
        padding request. ``advance_draft_forward_metadata`` and ``forward`` follow as in an eager round and are
        recorded with it; padding requests have lengths that mean nothing and tables without pages.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftSetup:
    """What exists only at run time and a drafter may need to build itself."""

    device: torch.device
    vocab_size: int
    max_batch: int
    max_context: int
    draft_backend: DraftBackend | None = None


@runtime_checkable
class Drafter(Protocol):
    """An algorithm that proposes tokens.

    What it returns is checked in every round: types and shapes, tokens and their numbers. That laws (``probs_BKV``) can
    be true (not negative, summing to 1, more than 0 for the token) is checked in eager rounds only, since a recorded
    round, of a drafter with ``needs.recordable``, would have to read them back. ``specdec.testing.check_drafter`` runs
    eager rounds and so finds those that cannot be; whether tokens were drawn from them, ``experiments.certify`` judges.
    """

    num_draft_tokens: int
    needs: DrafterNeeds

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Draft up to ``num_draft_tokens`` per request; None drafts nothing for anyone."""

    def forget(self, rows: Sequence[int]) -> None:
        """Drop all state kept for these rows: their requests finished or were preempted."""


class DrafterConfig(Protocol):
    """Configuration of a drafter: a frozen dataclass that any CPU can instantiate, compare and print."""

    num_draft_tokens: int
    needs: DrafterNeeds

    def build(self, setup: DraftSetup) -> Drafter:
        """Make the live drafter."""


@runtime_checkable
class Verifier(Protocol):
    """A rule that decides which drafted tokens are committed."""

    name: str
    lossless: bool
    lossless_how: str
    coupling: Coupling

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; device tensors only.

        ``logits_BNV`` are raw target logits; row j of a request predicts the token at ``positions_B + j``.
        Rows beyond ``num_drafted_B`` of a request are padding with arbitrary values. ``proposal=None`` (N = 1)
        is plain decoding: the one token is drawn by the same rule.
        """


@runtime_checkable
class TreeVerifier(Verifier, Protocol):
    """A rule that judges trees, too."""

    def judge_tree(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round of trees; the verdict has ``path_BK``. May read the proposal and the verdict on the host.

        Row 0 of ``logits_BNV`` follows the newest known token of a request and row i + 1 its node i: it predicts the
        token at ``positions_B + depth``. Rows and nodes beyond ``num_drafted_B`` are padding with arbitrary values.
        """
