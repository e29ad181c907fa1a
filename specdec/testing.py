"""For authors of drafters, draft models and targets: toy models, and checks that run yours in many situations.

``check_drafter(MyConfig())`` in a test of your own package is all that is needed; ``check_target(target)`` and
``check_draft_backend(target, backend)`` do the same for models. Knows no particular one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specdec.api import (
    Coupling,
    Drafter,
    DrafterConfig,
    DrafterNeeds,
    DraftInput,
    DraftSetup,
    DraftTree,
    Proposal,
    SiblingDraws,
    TargetSampling,
    Verdict,
    Verifier,
)
from specdec.draft_checks import check_draft_backend
from specdec.engine import Engine, EngineConfig
from specdec.law_targets import BigramTarget, IidTarget, LawDraft, LawTarget, laws_of
from specdec.model_checks import check_target, pages_to_check
from specdec.request import Request, RequestOutput
from specdec.sampling_params import SamplingParams
from specdec.sibling_verifier import SiblingVerifier
from specdec.toy import ScriptedTarget, TableDraft, TableTarget
from specdec.trees.rows import path_to, tree_rows
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier

__all__ = [
    "BigramTarget",
    "DrafterTally",
    "ForcedVerifier",
    "IidTarget",
    "LawDraft",
    "LawTarget",
    "PlainDrafter",
    "ScriptedTarget",
    "TableDraft",
    "TableTarget",
    "WatchedDrafter",
    "check_draft_backend",
    "check_drafter",
    "check_target",
    "laws_of",
    "pages_to_check",
    "run_checked",
]

LAW_TOLERANCE = 1e-4
EOS_ID = 0

ENGINES = (
    EngineConfig(max_batch=3, prefill_chunk=5),
    EngineConfig(max_batch=4, prefill_chunk=7, num_pages=16),
)


class PlainDrafter:
    """Drafts nothing."""

    num_draft_tokens = 0
    needs = DrafterNeeds()

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """Nothing for anyone."""
        return None

    def forget(self, rows: Sequence[int]) -> None:
        """Nothing is kept."""


class ForcedVerifier:
    """Accepts a set number of drafted tokens whatever they are: a lossy rule for tests of everything around it.

    pattern  most accepted tokens at position p is ``pattern[p % len(pattern)]``
    """

    name = "forced"
    lossless = False
    lossless_how = "accepts drafts whatever they are"
    coupling = Coupling.GREEDY

    def __init__(self, pattern: Sequence[int]) -> None:
        self._pattern_X = torch.tensor(pattern, dtype=torch.int64)

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; see ``api.Verifier.judge``."""
        drafted_BK = None if proposal is None else proposal.tokens_BK
        tokens_BN = sampling.adjust(logits_BNV, drafted_BK, positions_B).argmax(dim=-1)
        if proposal is None:
            return Verdict(tokens_BN=tokens_BN, num_accepted_B=torch.zeros_like(positions_B))
        limit_B = self._pattern_X[positions_B % len(self._pattern_X)]
        num_accepted_B = torch.minimum(limit_B, proposal.num_drafted_B)
        num_drafts = tokens_BN.shape[1] - 1
        is_draft_BK = torch.arange(num_drafts) < num_accepted_B[:, None]
        kept_BK = torch.where(is_draft_BK, proposal.tokens_BK[:, :num_drafts], tokens_BN[:, :-1])
        tokens_BN = torch.cat([kept_BK, tokens_BN[:, -1:]], dim=1)
        return Verdict(tokens_BN=tokens_BN, num_accepted_B=num_accepted_B)

    def judge_tree(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Accept the way to the last node that is not deeper than the pattern says; see ``api.TreeVerifier``."""
        assert proposal.parents_BK is not None, "a tree has parents"
        tree = tree_rows(proposal.parents_BK[:, : logits_BNV.shape[1] - 1], proposal.num_drafted_B)
        limit_B = self._pattern_X[positions_B % len(self._pattern_X)]
        depth_BK = tree.depth_BN[:, 1:] * (tree.is_node_BK & (tree.depth_BN[:, 1:] <= limit_B[:, None]))
        node_B = depth_BK.shape[1] - 1 - depth_BK.flip(1).argmax(dim=1)
        path = path_to(tree, node_B, depth_BK.gather(1, node_B[:, None])[:, 0])
        final_BN = path.gather(logits_BNV.argmax(dim=-1))
        kept_BN = torch.cat([proposal.tokens_BK.gather(1, path.nodes_BK), final_BN[:, -1:]], dim=1)
        is_kept_BN = torch.arange(kept_BN.shape[1]) < path.num_B[:, None]
        tokens_BN = torch.where(is_kept_BN, kept_BN, final_BN)
        return Verdict(tokens_BN=tokens_BN, num_accepted_B=path.num_B, path_BK=path.nodes_BK)


class WatchedDrafter:
    """Passes calls on to a drafter and asserts that both sides keep to the contract of ``specdec.api``."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.num_draft_tokens = drafter.num_draft_tokens
        self.needs = drafter.needs
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._starts: dict[int, int] = {}

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """The drafter's proposal, checked for shapes, limits, ids and laws."""
        # In a recorded round the layout is a constant, and so are the limits.
        places = (
            () if inputs.packed is not None else zip(inputs.layout.rows, inputs.layout.start_positions, strict=True)
        )
        for row, start in places:
            assert start >= self._starts.get(row, 0), f"row {row} went back without forget"
            self._starts[row] = start
        before = _copies(inputs)
        proposal = self._drafter.propose(inputs)
        for name, tensor in _copies(inputs).items():
            assert tensor.equal(before[name]), f"propose changed {name} of its input"
        if proposal is not None:
            self._check(inputs, proposal)
        return proposal

    def forget(self, rows: Sequence[int]) -> None:
        """Passed on."""
        for row in rows:
            self._starts.pop(row, None)
        self._drafter.forget(rows)

    def _check(self, inputs: DraftInput, proposal: Proposal) -> None:
        num_reqs, width = proposal.tokens_BK.shape
        assert num_reqs == inputs.layout.num_reqs, "one row of tokens per request of the pass"
        assert 1 <= width <= self.num_draft_tokens, "between 1 and num_draft_tokens columns"
        assert proposal.tokens_BK.dtype == proposal.num_drafted_B.dtype == torch.int64, "integers are int64"
        assert proposal.num_drafted_B.shape == (num_reqs,), "num_drafted_B has one entry per request"
        if proposal.parents_BK is not None:
            assert self.needs.trees, "a drafter that proposes trees declares needs.trees"
            assert proposal.parents_BK.shape == (num_reqs, width), "a parent per drafted token"
            assert proposal.parents_BK.dtype == torch.int64, "integers are int64"
            has_laws = proposal.probs_BKV is not None
            assert has_laws == (proposal.sibling_draws is not None), "sibling_draws goes with the laws of a tree"
        counts = proposal.num_drafted_B.tolist()
        limits = inputs.limits_B.tolist()
        for b, (count, limit) in enumerate(zip(counts, limits, strict=True)):
            assert limit <= inputs.max_draft_B[b], "the device allows no more than the host"
            if not inputs.wanted_B[b]:
                continue
            assert 0 <= count <= min(limit, width), f"request {b}: {count} drafted tokens, at most {limit}"
            tokens_K = proposal.tokens_BK[b, :count]
            assert bool(((tokens_K >= 0) & (tokens_K < self._vocab_size)).all()), "ids of the vocabulary"
            if proposal.parents_BK is not None:
                tree = DraftTree(tuple(proposal.parents_BK[b, :count].tolist()))
                self._check_siblings(tree, proposal, b)
            if proposal.probs_BKV is not None:
                self._check_law(proposal.probs_BKV[b, :count], tokens_K)

    def _check_siblings(self, tree: DraftTree, proposal: Proposal, b: int) -> None:
        if proposal.probs_BKV is None:
            return
        for children in tree.children.values():
            laws_SV, tokens = proposal.probs_BKV[b, list(children)], proposal.tokens_BK[b, list(children)].tolist()
            if proposal.sibling_draws is SiblingDraws.WITHOUT_REPLACEMENT:
                assert len(set(tokens)) == len(tokens), "siblings drawn without replacement differ"
            is_point = bool((laws_SV.amax(dim=1) == 1).all())
            assert is_point or bool((laws_SV == laws_SV[0]).all()), "siblings share the law of one draw"

    def _check_law(self, probs_KV: torch.Tensor, tokens_K: torch.Tensor) -> None:
        assert probs_KV.shape == (len(tokens_K), self._vocab_size), "a law per drafted token"
        assert bool((probs_KV.sum(dim=1) - 1).abs().lt(LAW_TOLERANCE).all()), "a law sums to one"
        assert bool((probs_KV.gather(1, tokens_K[:, None]) > 0).all()), "a token that its law cannot give"


def _copies(inputs: DraftInput) -> dict[str, torch.Tensor]:
    tensors = {
        "next_tokens_T": inputs.next_tokens_T,
        "num_committed_B": inputs.num_committed_B,
        "last_tokens_B": inputs.last_tokens_B,
        "seq_lens_B": inputs.seq_lens_B,
    }
    if inputs.hidden_TD is not None:
        tensors["hidden_TD"] = inputs.hidden_TD
    for b, history in enumerate(inputs.histories):
        tensors[f"histories[{b}]"] = torch.tensor(history)
    return {name: tensor.clone() for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class DrafterTally:
    """Totals over all runs of ``check_drafter``, for further assertions."""

    num_rounds: int
    num_drafted: int
    num_accepted: int
    num_preemptions: int


def run_checked(engine: Engine, requests: Sequence[Request]) -> dict[str, RequestOutput]:
    """Run ``requests`` to their end with an integrity check in every round; outputs by request id."""
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.run_round()
        engine.check_integrity()
    return {output.request_id: output for output in engine.take_outputs()}


def check_drafter(config: DrafterConfig) -> DrafterTally:
    """Run a drafter over toy targets: batches, chunked prompts, preemption, stops, and every kind of acceptance.

    With a lossless rule its output must be that of plain decoding; with a rule that never, always or sometimes
    accepts, pages and rows must be conserved. A drafter that declares a draft backend is given ``TableDraft``.
    Raises AssertionError, or the engine's own error, at the first violation.
    """
    outputs: list[RequestOutput] = []
    num_rounds = 0
    verifiers = (GreedyVerifier(), GumbelVerifier())
    cases: list[tuple[Verifier, bool]] = [(verifier, True) for verifier in verifiers]
    cases += [(ForcedVerifier(pattern), False) for pattern in ((0,), (99,), (0, 2, 1, 99, 0))]
    cases.append((SiblingVerifier() if config.needs.trees else RejectionVerifier(), False))
    for verifier, lossless in cases:
        for history_weight in (0.0, 1.0):
            plain = _run(lambda _: PlainDrafter(), verifier, EngineConfig(), history_weight)[0]
            for engine_config in ENGINES:
                found, rounds = _run(config.build, verifier, engine_config, history_weight)
                if lossless:
                    _assert_same_text(plain, found)
                outputs.extend(found.values())
                num_rounds += rounds
    steps = [step for output in outputs for step in output.steps]
    return DrafterTally(
        num_rounds=num_rounds,
        num_drafted=sum(step.proposed for step in steps),
        num_accepted=sum(step.accepted for step in steps),
        num_preemptions=sum(output.num_preemptions for output in outputs),
    )


def _run(
    build: Callable[[DraftSetup], Drafter], verifier: Verifier, config: EngineConfig, history_weight: float
) -> tuple[dict[str, RequestOutput], int]:
    target = TableTarget(max_context=40, history_weight=history_weight, sharpness=3.0)
    draft_backend = TableDraft(target)
    setup = DraftSetup(
        device=target.device,
        vocab_size=target.vocab_size,
        max_batch=config.max_batch,
        max_context=target.max_context,
        draft_backend=draft_backend,
    )
    drafter = WatchedDrafter(build(setup), target.vocab_size)
    groups = draft_backend.cache_groups if drafter.needs.draft_backend else ()
    engine = Engine(target, drafter, verifier, config, eos_ids=(EOS_ID,), draft_groups=groups)
    outputs = run_checked(engine, _requests(target))
    assert draft_backend.num_dropped == 0, "a draft step wrote beyond its reservation"
    return outputs, len(engine.rounds)


def _requests(target: TableTarget) -> list[Request]:
    """Prompts of many lengths, repetitive and not, up to the context limit; budgets from one token on."""
    requests = []
    for i, length in enumerate((1, 2, 9, 14, 27, target.max_context - 3)):
        prompt = tuple(1 + (i + j * j * (i % 2) + j % 3) % (target.vocab_size - 1) for j in range(length))
        sampling = SamplingParams(
            temperature=(0.0, 0.7, 1.3)[i % 3], seed=i, max_new_tokens=(24, 1, 17)[i % 3], ignore_eos=i % 2 == 0
        )
        requests.append(Request(request_id=f"request-{i}", prompt=prompt, sampling=sampling))
    return requests


def _assert_same_text(plain: dict[str, RequestOutput], found: dict[str, RequestOutput]) -> None:
    for name, output in plain.items():
        assert found[name].output_ids == output.output_ids, f"{name}: the output is not that of plain decoding"
        assert found[name].finish_reason is output.finish_reason, f"{name}: another reason to finish"
