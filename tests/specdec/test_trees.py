"""Trees: their shape, layouts, refusals by name, the sibling verifier in the engine and in the certificate."""

from collections import Counter
from fractions import Fraction

import pytest
import torch

from drafters.draft_model import DraftModelConfig
from drafters.ngram import NgramConfig
from specdec.api import DrafterNeeds, DraftSetup, DraftTree, Proposal, RoundLayout, SiblingDraws
from specdec.certify.certificate import certify
from specdec.certify.tables import BIGRAM
from specdec.engine import Engine, EngineConfig
from specdec.errors import MetadataError, UnsupportedError
from specdec.request import Request
from specdec.rule_verifiers import BlockVerifier
from specdec.sampling_params import SamplingParams
from specdec.sibling_verifier import SiblingVerifier
from specdec.testing import IidTarget, PlainDrafter, TableTarget, run_checked
from specdec.trees.rows import matching_path, tree_rows
from specdec.verifiers import GreedyVerifier, GumbelVerifier, RejectionVerifier


def test_a_tree_in_any_order_knows_depths_and_order() -> None:
    tree = DraftTree((2, 2, -1, -1, 0))
    assert tree.depths == (2, 2, 1, 1, 3) and tree.depth == 3
    assert tree.path(4) == (2, 0, 4) and not tree.is_ordered
    assert tree.order == (2, 3, 0, 1, 4) and tree.ordered().parents == (-1, -1, 0, 0, 2)


@pytest.mark.parametrize(
    ("parents", "said"), [((-1, 2), "0..1, got 2 for node 1"), ((-2,), "got -2"), ((1, 0), "circle"), ((0,), "circle")]
)
def test_parents_that_form_no_tree_are_refused(parents, said) -> None:
    with pytest.raises(MetadataError, match=said):
        DraftTree(parents)


def test_a_layout_has_positions_by_depth_and_places_by_order() -> None:
    layout = RoundLayout(rows=(3, 1), start_positions=(5, 8), query_lens=(4, 2), trees=(DraftTree((-1, -1, 1)), None))
    assert layout.positions == (5, 6, 6, 7, 8, 9) and layout.places == (5, 6, 7, 8, 8, 9)
    assert layout.seen(0) == ((0,), (0, 1), (0, 2), (0, 2, 3)) and layout.seen(1) == ((0,), (0, 1))
    with pytest.raises(MetadataError, match="parents come before"):
        RoundLayout(rows=(0,), start_positions=(0,), query_lens=(3,), trees=(DraftTree((1, -1)),))
    with pytest.raises(MetadataError, match="3 tokens and a tree of 1 nodes"):
        RoundLayout(rows=(0,), start_positions=(0,), query_lens=(3,), trees=(DraftTree((-1,)),))


def test_of_equal_siblings_the_one_with_the_longer_path_is_kept() -> None:
    parents, tokens = torch.tensor([[-1, -1, 1, 0]]), torch.tensor([[4, 4, 5, 6]])
    tree = tree_rows(parents, torch.tensor([4]))
    path = matching_path(tree, tokens, torch.tensor([[4, 5, 5, 7, 8]]))
    assert path.num_B.tolist() == [2] and path.nodes_BK[0, :2].tolist() == [1, 2]
    assert path.gather(torch.tensor([[4, 5, 5, 7, 8]]))[0, :3].tolist() == [4, 5, 7]


class Trees:
    """The same tree in every round."""

    num_draft_tokens = 3

    def __init__(self, proposal: Proposal, **needs: bool) -> None:
        self.needs, self._proposal = DrafterNeeds(**needs), proposal

    def propose(self, inputs):
        num_B = self._proposal.num_drafted_B.minimum(inputs.limits_B)
        return Proposal(
            tokens_BK=self._proposal.tokens_BK,
            num_drafted_B=num_B,
            probs_BKV=self._proposal.probs_BKV,
            parents_BK=self._proposal.parents_BK,
            sibling_draws=self._proposal.sibling_draws,
        )

    def forget(self, rows) -> None:
        pass


def proposal(**options) -> Proposal:
    return Proposal(
        tokens_BK=torch.tensor([[1, 2, 3]]),
        num_drafted_B=torch.tensor([3]),
        parents_BK=torch.tensor([[-1, -1, 0]]),
        **options,
    )


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()])
def test_a_verifier_of_chains_is_refused_by_name(verifier) -> None:
    with pytest.raises(UnsupportedError, match=f"verifier {verifier.name} judges chains, and the drafter proposes"):
        Engine(TableTarget(), Trees(proposal(), trees=True), verifier, EngineConfig())


class ChainTarget:
    """A target that has what a target must have and no more."""

    def __init__(self) -> None:
        own = TableTarget()
        self.vocab_size, self.max_context = own.vocab_size, own.max_context
        self.device, self.cache_groups, self.forward = own.device, own.cache_groups, own.forward


def test_a_target_of_chains_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="ChainTarget verifies chains, and the drafter proposes trees"):
        Engine(ChainTarget(), Trees(proposal(), trees=True), GreedyVerifier(), EngineConfig())


def test_a_drafter_of_trees_cannot_be_recorded() -> None:
    with pytest.raises(UnsupportedError, match="needs.trees excludes needs.recordable"):
        Engine(TableTarget(), Trees(proposal(), trees=True, recordable=True), GreedyVerifier(), EngineConfig())


@pytest.mark.parametrize(
    ("drafted", "error", "said"),
    [
        (Trees(proposal()), UnsupportedError, "does not declare needs.trees"),
        (Trees(proposal(probs_BKV=torch.full((1, 3, 13), 1 / 13)), trees=True), MetadataError, "sibling_draws"),
    ],
)
def test_a_tree_that_says_too_little_is_refused(drafted, error, said) -> None:
    engine = Engine(TableTarget(), drafted, SiblingVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1, 2, 3), sampling=SamplingParams(temperature=1.0)))
    with pytest.raises(error, match=said):
        engine.run()


def test_rounds_with_trees_are_eager_and_counted_beside_recorded_ones() -> None:
    target = TableTarget(history_weight=0.0, sharpness=3.0)
    setup = {"device": target.device, "vocab_size": target.vocab_size, "max_batch": 2, "max_context": 96}
    sampling = SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True)
    requests = [Request(request_id=str(i), prompt=(1, 2, 1, 3, 1 + i, 2), sampling=sampling) for i in range(2)]
    plain = run_checked(Engine(target, PlainDrafter(), GumbelVerifier(), EngineConfig()), requests)
    drafter = NgramConfig(num_draft_tokens=6, branches=3).build(DraftSetup(**setup))
    engine = Engine(target, drafter, GumbelVerifier(), EngineConfig(max_batch=2, graphs=True))
    found = run_checked(engine, requests)
    assert {k: v.output_ids for k, v in found.items()} == {k: v.output_ids for k, v in plain.items()}
    assert engine.execution.num_tree_rounds > 0 and engine.execution.num_captured_rounds > 0
    assert engine.execution.num_above_sizes == 0
    trees = [step for output in found.values() for step in output.steps if step.parents]
    assert all(step.depth < step.proposed == len(step.parents) for step in trees)


@pytest.mark.parametrize(("siblings", "depth"), [("chosen", 2), ("without_replacement", 2), ("with_replacement", 1)])
def test_trees_of_a_draft_model_are_exact(siblings, depth) -> None:
    config = DraftModelConfig(num_draft_tokens=3, tree_width=2, tree_depth=depth, siblings=siblings)
    found = certify(SiblingVerifier(), config, num_tokens=3, pairs=(BIGRAM,))
    assert found.exact, str(found)
    assert "a table stood in for the draft model" in str(found)
    with pytest.raises(UnsupportedError, match="verifier rejection judges chains, and DraftModelConfig"):
        certify(RejectionVerifier(), config, num_tokens=3)


def test_sampled_siblings_in_the_engine_follow_the_targets_law() -> None:
    """Two tokens of many seeded requests, against the exact joint law; 4 standard deviations of each count."""
    law = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
    target = IidTarget(law)
    drawn = torch.tensor([[[1 / 4, 1 / 4, 1 / 2]] * 3])
    num, counts = 1500, Counter()
    engine = Engine(target, _Drawn(drawn), SiblingVerifier(), EngineConfig(max_batch=64))
    sampling = [SamplingParams(temperature=1.0, seed=i, max_new_tokens=5) for i in range(num)]
    for i in range(num):
        engine.add(Request(request_id=str(i), prompt=(0,), sampling=sampling[i]))
    for output in engine.run():
        counts[output.output_ids[1:3]] += 1
        assert len(output.output_ids) == 5
    for a in range(3):
        for b in range(3):
            p = float(law[a] * law[b])
            assert abs(counts[a, b] - num * p) < 4 * (num * p * (1 - p)) ** 0.5


class _Drawn:
    """Two siblings without replacement, then one more token after the first, all from one law."""

    num_draft_tokens = 3
    needs = DrafterNeeds(trees=True)

    def __init__(self, law_13V: torch.Tensor) -> None:
        self._law_13V = law_13V

    def propose(self, inputs):
        logits_BV = self._law_13V[:, 0].log().expand(inputs.layout.num_reqs, -1)
        first = inputs.sampling.draw_siblings(logits_BV, inputs.seq_lens_B + 1, count=2)
        second = inputs.sampling.draw_siblings(logits_BV, inputs.seq_lens_B + 2, count=1)
        return Proposal(
            tokens_BK=torch.cat([first.tokens_BS, second.tokens_BS], dim=1),
            num_drafted_B=inputs.limits_B.clone(),
            probs_BKV=self._law_13V.expand(inputs.layout.num_reqs, -1, -1),
            parents_BK=torch.tensor([[-1, -1, 0]]).repeat(inputs.layout.num_reqs, 1),
            sibling_draws=SiblingDraws.WITHOUT_REPLACEMENT,
        )

    def forget(self, rows) -> None:
        pass
