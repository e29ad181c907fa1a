"""A decode round as one function of device tensors: what a graph records between its copies from and to the host.

Its steps are those of an eager round, in the same order: target pass, judgement, catch-up and draft steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec.api import DraftInput, GraphTarget, PackedPass, Proposal, RoundLayout, TargetOutput, Verdict
from specdec.cache.tables import BlockTables
from specdec.rounds.arena import RoundArena
from specdec.rounds.parts import RoundParts
from specdec.rounds.proposal_checks import check_form
from specdec.rounds.readback import float_bits
from specdec.rounds.steps import FILLER_TOKEN
from specdec.rounds.token_probs import TokenProbs, token_probs
from specdec.sampling import BatchSampling


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTensors:
    """What a recorded round reads, and the draft laws that it overwrites.

    has_laws  whether the drafts that it verifies have laws
    laws      gives float32 [at least B, K, V]: laws of the drafts to verify before, of the new drafts after the round
    """

    arena: RoundArena
    sampling: BatchSampling
    has_laws: bool
    laws: Callable[[], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRound:
    """What ``run_device_round`` writes.

    result_BX     int64 accepted drafts [1] and tokens [N] of each request; with drafts also their number [1] and
                  ids [K]; then, as ``float_bits``, what ``floats`` names
    num_integers  columns of it that are integers
    floats        name, as in ``JudgedFloats``, and number of columns of each kind of floats behind them, in order
    proposal      the drafts of all requests, padding included, as views of the result and of the laws; None without
                  a recorded drafter
    hidden_TD     states for a drafter that is not recorded, or None
    """

    result_BX: torch.Tensor
    num_integers: int
    floats: tuple[tuple[str, int], ...]
    proposal: Proposal | None
    hidden_TD: torch.Tensor | None

    @property
    def num_columns(self) -> int:
        """All columns of the result."""
        return self.result_BX.shape[1]


def most_columns(width: int, num_drafts: int) -> int:
    """Columns of ``DeviceRound.result_BX`` with all that there may be."""
    return 1 + width + 1 + num_drafts + width + 3 * (width - 1)


def run_device_round(parts: RoundParts, tables: BlockTables, tensors: RoundTensors) -> DeviceRound:
    """Run the round whose integers are in the arena; device work only."""
    target, drafter = parts.target, parts.drafter
    assert isinstance(target, GraphTarget), "a target without forward_packed cannot be recorded"
    arena = tensors.arena
    packed = PackedPass(
        tokens_T=arena.tokens_BN.view(-1),
        positions_T=arena.positions_T,
        reqs_T=arena.reqs_T,
        tables=tables.gather(arena.rows_B),
    )
    output = target.forward_packed(packed, hidden_layers=drafter.needs.hidden_layers)
    verdict, probs = _judge(parts, tensors, output)
    committed_B = (verdict.num_accepted_B + 1).minimum(arena.remaining_B)
    tensors.sampling.count(verdict.tokens_BN, committed_B)
    parts_of_result = [verdict.num_accepted_B.unsqueeze(1), verdict.tokens_BN]
    has_drafts = drafter.needs.recordable and drafter.num_draft_tokens > 0
    has_laws = False
    if has_drafts:
        proposal = drafter.propose(_draft_input(parts, tensors, packed, output, verdict, committed_B))
        if proposal is not None:
            check_form(proposal, num_reqs=arena.num_reqs, vocab_size=target.vocab_size, device=target.device)
        parts_of_result += _drafts(arena, proposal, drafter.num_draft_tokens)
        has_laws = proposal is not None and proposal.probs_BKV is not None
        if proposal is not None and proposal.probs_BKV is not None:
            num_reqs, num_drafts, _ = proposal.probs_BKV.shape
            tensors.laws()[:num_reqs, :num_drafts].copy_(proposal.probs_BKV)
    num_integers = sum(part.shape[1] for part in parts_of_result)
    floats = _floats(verdict, probs)
    result_BX = torch.cat([*parts_of_result, *map(float_bits, floats.values())], dim=1)
    return DeviceRound(
        result_BX=result_BX,
        num_integers=num_integers,
        floats=tuple((name, values.shape[1]) for name, values in floats.items()),
        proposal=_views(result_BX[:, :num_integers], tensors, has_laws=has_laws) if has_drafts else None,
        hidden_TD=None if has_drafts else output.hidden_TD,
    )


def _floats(verdict: Verdict, probs: TokenProbs | None) -> dict[str, torch.Tensor]:
    """Floats that there are, by their name in ``JudgedFloats``: of tokens [B, N], of drafts [B, N - 1]."""
    found = {"logprobs": verdict.logprobs_BN, "overlap": verdict.overlap_BK}
    if probs is not None:
        found |= {"target_probs": probs.target_BK, "draft_probs": probs.draft_BK}
    return {name: values for name, values in found.items() if values is not None}


def _judge(parts: RoundParts, tensors: RoundTensors, output: TargetOutput) -> tuple[Verdict, TokenProbs | None]:
    arena = tensors.arena
    proposal = None
    if arena.width > 1:
        proposal = Proposal(
            tokens_BK=arena.tokens_BN[:, 1:],
            num_drafted_B=arena.num_drafted_B,
            probs_BKV=tensors.laws()[: arena.num_reqs] if tensors.has_laws else None,
        )
    logits_BNV = output.logits_RV.view(arena.num_reqs, arena.width, -1)
    probs = None
    if parts.record_probs:
        probs = token_probs(logits_BNV, proposal, tensors.sampling, arena.firsts_B)
    return parts.verifier.judge(logits_BNV, proposal, tensors.sampling, arena.firsts_B), probs


def _draft_input(
    parts: RoundParts,
    tensors: RoundTensors,
    packed: PackedPass,
    output: TargetOutput,
    verdict: Verdict,
    committed_B: torch.Tensor,
) -> DraftInput:
    arena, num_drafts = tensors.arena, parts.drafter.num_draft_tokens
    num_reqs, width = arena.num_reqs, arena.width
    is_known_BN = torch.arange(width, device=committed_B.device) < committed_B.unsqueeze(1)
    next_tokens_BN = torch.where(is_known_BN, verdict.tokens_BN, FILLER_TOKEN)
    seq_lens_B = (arena.firsts_B + committed_B - 1).clamp(min=0)
    return DraftInput(
        layout=RoundLayout(
            rows=tuple(range(num_reqs)), start_positions=(0,) * num_reqs, query_lens=(width,) * num_reqs
        ),
        next_tokens_T=next_tokens_BN.view(-1),
        hidden_TD=output.hidden_TD,
        num_committed_B=committed_B,
        last_tokens_B=verdict.tokens_BN.gather(1, verdict.num_accepted_B.unsqueeze(1)).squeeze(1),
        seq_lens_B=seq_lens_B,
        wanted_B=(True,) * num_reqs,
        max_draft_B=(num_drafts,) * num_reqs,
        limits_B=(arena.remaining_B - committed_B - 1).clamp(0, num_drafts),
        sampling=tensors.sampling.drafting(seq_lens_B + 1),
        histories=(),
        tables=packed.tables,
        packed=packed,
    )


def _drafts(arena: RoundArena, proposal: Proposal | None, num_drafts: int) -> list[torch.Tensor]:
    """Numbers [B, 1] and ids [B, K] of the drafts; a narrower proposal is padded."""
    if proposal is None:
        return [torch.zeros_like(arena.tokens_BN[:, :1]).expand(-1, 1 + num_drafts)]
    assert proposal.parents_BK is None, "the engine verifies chains"
    missing = num_drafts - proposal.tokens_BK.shape[1]
    return [proposal.num_drafted_B.unsqueeze(1), F.pad(proposal.tokens_BK, (0, missing))]


def _views(integers_BX: torch.Tensor, tensors: RoundTensors, *, has_laws: bool) -> Proposal:
    """The drafts as they stand in the result and in the laws."""
    num_reqs, start = tensors.arena.num_reqs, 1 + tensors.arena.width
    return Proposal(
        tokens_BK=integers_BX[:, start + 1 :],
        num_drafted_B=integers_BX[:, start],
        probs_BKV=tensors.laws()[:num_reqs] if has_laws else None,
    )
