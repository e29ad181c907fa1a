"""EagerRounds: a round as separate calls, with the host in between; for every mix of prompt chunks and decode rows."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch

from specdec.api import DraftInput, Proposal, Tables, TargetOutput, TreeTarget, TreeVerifier
from specdec.rounds.parts import RoundParts, RoundResult, Samplings
from specdec.rounds.steps import (
    Drafted,
    Judged,
    block_logits,
    commit,
    draft_input,
    first_positions,
    match_proposal,
    pack_tokens,
    read_verdict,
    take_drafts,
)
from specdec.rounds.token_probs import token_probs
from specdec.scheduler import Batch
from specdec.trees.proposals import kept_layout, kept_rows


class EagerRounds:
    """Runs target pass, judgement, commit and proposal one after the other."""

    def __init__(self, parts: RoundParts) -> None:
        self._parts = parts
        self._samplings = Samplings(parts)

    def run(self, batch: Batch, tables: Tables, drafted: Drafted | None) -> RoundResult:
        """One round of ``batch``, whose drafts come from ``drafted``."""
        target, needs = self._parts.target, self._parts.drafter.needs
        started = perf_counter()
        tokens_T = pack_tokens(batch, target.device)
        output = target.forward(batch.layout, tokens_T, tables, hidden_layers=needs.hidden_layers)
        judged = self._judge(batch, output, drafted)
        has_trees = batch.layout.has_trees
        if has_trees:
            batch, output = self._keep_paths(batch, output, judged, tables)
        verify_s = perf_counter() - started
        committed = commit(batch, judged)
        started = perf_counter()
        proposed = self.propose(batch, output, tables)
        return RoundResult(
            committed=committed,
            drafted=proposed,
            verify_s=verify_s,
            draft_s=perf_counter() - started,
            has_trees=has_trees,
        )

    def propose(self, batch: Batch, output: TargetOutput, tables: Tables) -> Drafted | None:
        """The drafter's proposal after ``commit``, handed to the requests; None when it drafts nothing."""
        inputs = self._draft_input(batch, output, tables)
        if inputs is None:
            return None
        proposal: Proposal | None = self._parts.drafter.propose(inputs)
        return take_drafts(
            batch,
            proposal,
            inputs.max_draft_B,
            vocab_size=self._parts.target.vocab_size,
            device=self._parts.target.device,
            trees=self._parts.drafter.needs.trees,
        )

    def _judge(self, batch: Batch, output: TargetOutput, drafted: Drafted | None) -> list[Judged]:
        """The verifier's decision for the emitting requests, on the host."""
        if not batch.emitting:
            return []
        verifier = self._parts.verifier
        logits_BNV, proposal = block_logits(batch, output.logits_RV), match_proposal(batch, drafted)
        sampling = self._samplings.of(tuple(batch.requests[index] for index in batch.emitting))
        positions_B = first_positions(batch, self._parts.target.device)
        probs = None
        if self._parts.record_probs:
            probs = token_probs(logits_BNV, proposal, sampling, positions_B)
        if proposal is None or proposal.parents_BK is None:
            return read_verdict(batch, verifier.judge(logits_BNV, proposal, sampling, positions_B), probs)
        assert isinstance(verifier, TreeVerifier), "checked when the engine was made"
        return read_verdict(batch, verifier.judge_tree(logits_BNV, proposal, sampling, positions_B), probs)

    def _keep_paths(
        self, batch: Batch, output: TargetOutput, judged: Sequence[Judged], tables: Tables
    ) -> tuple[Batch, TargetOutput]:
        """Let the target keep the accepted paths; batch and output as if nothing else had been verified."""
        target, layout = self._parts.target, batch.layout
        assert isinstance(target, TreeTarget), "checked when the engine was made"
        paths: list[Sequence[int]] = [()] * layout.num_reqs
        for index, one in zip(batch.emitting, judged, strict=True):
            tree = layout.trees[index]
            if tree is not None:
                assert tree.is_path(one.path), f"{self._parts.verifier.name} accepted {one.path} of {tree}"
                paths[index] = one.path
        target.keep_paths(layout, paths, tables)
        hidden_TD = output.hidden_TD
        if hidden_TD is not None:
            hidden_TD = hidden_TD[torch.tensor(kept_rows(layout, paths), device=hidden_TD.device)]
        return replace(batch, layout=kept_layout(layout, paths)), replace(output, hidden_TD=hidden_TD)

    def _draft_input(self, batch: Batch, output: TargetOutput, tables: Tables) -> DraftInput | None:
        """What the drafter is shown of this pass; None when it has nothing to do with it."""
        drafter = self._parts.drafter
        if drafter.num_draft_tokens == 0:
            return None
        inputs = draft_input(
            batch,
            output,
            num_draft_tokens=drafter.num_draft_tokens,
            with_histories=drafter.needs.history,
            sampling=self._samplings.of(batch.requests),
            tables=tables,
            device=self._parts.target.device,
        )
        sees_all = drafter.needs.draft_backend or bool(drafter.needs.hidden_layers)
        return inputs if sees_all or any(inputs.wanted_B) else None
