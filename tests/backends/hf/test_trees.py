"""Trees over tiny transformers models: logits of every node are those of its own text, output is plain decoding's."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.hf.draft import HfDraft
from backends.hf.target import HfPassConfig, HfTarget, RecomputeTarget
from backends.hf.vocabulary import same_ids
from drafters.draft_model import DraftModelConfig
from specdec.api import LAST_LAYER, DrafterNeeds, DraftInput, DraftSetup, DraftTree, Proposal, RoundLayout
from specdec.engine import Engine, EngineConfig
from specdec.errors import ConfigError, UnsupportedError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.sibling_verifier import SiblingVerifier
from specdec.testing import PlainDrafter, WatchedDrafter, run_checked
from specdec.verifiers import GreedyVerifier, GumbelVerifier

VOCABULARY, CONTEXT = 29, 96
FAMILIES = ("lean_llama", "llama", "gpt2", "qwen3", "gpt_neox", "gemma", "mistral")
HYPOTHESIS = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class GuessedTrees:
    """Random shuffled trees of tokens, half of them those of the given texts."""

    needs = DrafterNeeds(history=True, trees=True)

    def __init__(self, texts, *, most: int, seed: int) -> None:
        self.num_draft_tokens = most
        self._texts, self._random = texts, random.Random(seed)

    def propose(self, inputs: DraftInput) -> Proposal | None:
        lines = [
            self._tree(tuple(history), limit if wanted else 0)
            for history, wanted, limit in zip(inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True)
        ]
        width = max(len(tokens) for tokens, _ in lines)
        if width == 0:
            return None
        return Proposal(
            tokens_BK=torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in lines]),
            num_drafted_B=torch.tensor([len(tokens) for tokens, _ in lines]),
            parents_BK=torch.tensor([parents + [0] * (width - len(parents)) for _, parents in lines]),
        )

    def forget(self, rows) -> None:
        pass

    def _tree(self, history: tuple[int, ...], count: int) -> tuple[list[int], list[int]]:
        rng, parents, paths = self._random, [], []
        text = next((t for t in self._texts if t[: len(history)] == history), history)
        for node in range(count):
            parents.append(rng.choice([-1, node - 1, rng.randrange(-1, node)]))
            path = history if parents[-1] < 0 else paths[parents[-1]]
            is_right = rng.random() < 0.5 and text[: len(path)] == path and len(path) < len(text)
            paths.append((*path, text[len(path)] if is_right else rng.randrange(VOCABULARY)))
        order = rng.sample(range(count), count)
        return [paths[old][-1] for old in order], [
            -1 if parents[old] < 0 else order.index(parents[old]) for old in order
        ]


@HYPOTHESIS
@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 10**6),
    most=st.integers(2, 10),
    max_batch=st.integers(1, 3),
    num_pages=st.sampled_from([None, 8]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_trees_leave_the_output_of_plain_decoding(tiny, family, seed, most, max_batch, num_pages, temperature) -> None:
    model, rng = tiny(family), random.Random(seed)
    verifier = GumbelVerifier() if temperature else GreedyVerifier()
    requests = [
        Request(
            request_id=str(i),
            prompt=tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 20))),
            sampling=SamplingParams(temperature=temperature, seed=i, max_new_tokens=12, ignore_eos=True),
        )
        for i in range(3)
    ]

    def outputs(drafter):
        target = HfTarget(model, HfPassConfig(max_rows=max_batch))
        config = EngineConfig(max_batch=max_batch, prefill_chunk=9, num_pages=num_pages)
        return run_checked(Engine(target, drafter, verifier, config), requests)

    plain = outputs(PlainDrafter())
    texts = [output.prompt_ids + output.output_ids for output in plain.values()]
    found = outputs(GuessedTrees(texts, most=most, seed=seed))
    assert {name: output.output_ids for name, output in found.items()} == {
        name: output.output_ids for name, output in plain.items()
    }
    assert any(step.parents for output in found.values() for step in output.steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_has_the_logits_and_states_of_its_own_text(tiny, family) -> None:
    model = tiny(family)
    target = HfTarget(model, HfPassConfig(max_rows=4))
    texts = ([3, 1, 4, 1, 5, 9, 2], [2, 7, 1])
    trees = (DraftTree((-1, -1, 0, 1, 1, 3)), DraftTree((-1, 0, 0)))
    nodes = ([5, 6, 7, 8, 9, 10], [11, 12, 13])
    ids = torch.tensor([*texts[0][:-1], *texts[1][:-1]])
    prompts = RoundLayout(rows=(0, 2), start_positions=(0, 0), query_lens=(6, 2), num_prefill_reqs=2)
    target.forward(prompts, ids, {})
    layout = RoundLayout(
        rows=(0, 2), start_positions=(6, 2), query_lens=(7, 4), logit_rows=tuple(range(11)), trees=trees
    )
    packed = torch.tensor([texts[0][-1], *nodes[0], texts[1][-1], *nodes[1]])
    output = target.forward(layout, packed, {}, hidden_layers=(0, LAST_LAYER))
    row = 0
    for text, tree, tokens in zip(texts, trees, nodes, strict=True):
        for node in range(-1, tree.num_nodes):
            whole = torch.tensor([[*text, *(tokens[n] for n in tree.path(node))]])
            expected = model.uncached(whole, columns=[whole.shape[1] - 1], hidden_layers=(0, LAST_LAYER))
            torch.testing.assert_close(output.logits_RV[row], expected.logits_BCV[0, 0], atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(output.hidden_TD[row], expected.hidden_BQD[0, -1], atol=1e-3, rtol=1e-3)
            row += 1
    # The path 1, 3, 5 is kept; the next pass must see it as if a chain had been verified.
    target.keep_paths(layout, ((1, 3, 5), (0, 2)), {})
    after = RoundLayout(rows=(0, 2), start_positions=(10, 5), query_lens=(1, 1), logit_rows=(0, 1))
    found_RV = target.forward(after, torch.tensor([20, 21]), {}).logits_RV
    for row, text in enumerate(([*texts[0], 6, 8, 10, 20], [*texts[1], 11, 13, 21])):
        expected = model.uncached(torch.tensor([text]), columns=[len(text) - 1]).logits_BCV[0, 0]
        torch.testing.assert_close(found_RV[row], expected, atol=1e-3, rtol=1e-3)


def test_targets_without_trees_refuse_by_name(tiny) -> None:
    drafter = GuessedTrees((), most=4, seed=0)
    with pytest.raises(UnsupportedError, match="RecomputeTarget verifies chains"):
        Engine(RecomputeTarget(tiny("llama")), drafter, GreedyVerifier(), EngineConfig())
    fixed = HfTarget(tiny("llama"), HfPassConfig(max_rows=1, fixed_rows=8))
    with pytest.raises(ConfigError, match="batch_invariant cannot be kept with trees"):
        Engine(fixed, drafter, GreedyVerifier(), EngineConfig(batch_invariant=True))
    layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(3,), trees=(DraftTree((-1, -1)),))
    with pytest.raises(UnsupportedError, match="not trees"):
        fixed.forward(layout, torch.tensor([1, 2, 3]), {})


def tree_drafter(model, config: DraftModelConfig, *, max_rows: int) -> WatchedDrafter:
    vocabulary = same_ids(target_size=model.vocab_size, draft_size=model.vocab_size)
    setup = DraftSetup(
        device=model.device,
        vocab_size=model.vocab_size,
        max_batch=max_rows,
        max_context=model.max_context,
        draft_backend=HfDraft(model, vocabulary, max_rows=max_rows),
    )
    return WatchedDrafter(config.build(setup), model.vocab_size)


@pytest.mark.parametrize("siblings", ["chosen", "without_replacement", "with_replacement"])
@pytest.mark.parametrize("family", ["lean_llama", "gpt2"])
def test_a_draft_model_grows_trees_whose_nodes_know_their_own_text(tiny, family, siblings) -> None:
    """The draft is the target itself, so under its own noise it knows the target's choices, to the context's end."""
    model = tiny(family)
    config = DraftModelConfig(num_draft_tokens=9, tree_width=2, tree_depth=3, siblings=siblings)
    requests = [
        Request(
            request_id=str(i),
            prompt=(3, 1, 4, 1 + i) * (1 + 10 * i),
            sampling=SamplingParams(temperature=0.8 * (i % 2), seed=i, max_new_tokens=70, ignore_eos=True),
        )
        for i in range(3)
    ]

    def outputs(drafter, max_batch):
        target = HfTarget(model, HfPassConfig(max_rows=max_batch))
        engine = Engine(target, drafter, GumbelVerifier(), EngineConfig(max_batch=max_batch, prefill_chunk=16))
        return run_checked(engine, requests)

    plain = outputs(PlainDrafter(), 1)
    found = outputs(tree_drafter(model, config, max_rows=2), 2)
    for name, output in plain.items():
        assert found[name].output_ids == output.output_ids
    steps = [step for output in found.values() for step in output.steps if step.proposed == 9]
    if siblings == "chosen":
        assert sum(step.accepted for step in steps) > len(steps)
    else:
        # All nodes of the first two levels are there, and one of them on each is the target's own choice.
        assert steps and all(step.accepted >= 2 for step in steps)


def test_sampled_siblings_run_under_their_rule(tiny) -> None:
    model = tiny("llama")
    for siblings in ("without_replacement", "with_replacement"):
        config = DraftModelConfig(num_draft_tokens=8, tree_width=2, tree_depth=3, siblings=siblings)
        target = HfTarget(model, HfPassConfig(max_rows=2))
        engine = Engine(target, tree_drafter(model, config, max_rows=2), SiblingVerifier(), EngineConfig(max_batch=2))
        sampling = SamplingParams(temperature=1.0, seed=3, max_new_tokens=20, ignore_eos=True, logprobs=True)
        found = run_checked(engine, [Request(request_id="a", prompt=(5, 6, 7), sampling=sampling)])["a"]
        assert len(found.output_ids) == len(found.logprobs) == 20
        ids = torch.tensor([[*found.prompt_ids, *found.output_ids]])
        laws_XV = model.uncached(ids, columns=range(2, 22)).logits_BCV[0].log_softmax(dim=-1)
        expected = laws_XV.gather(1, torch.tensor(found.output_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found.logprobs), expected, atol=1e-3, rtol=1e-3)
        # Its law is the target's, so the first sibling is always accepted, and both on the first level are followed.
        assert all(step.accepted >= 2 for step in found.steps if step.proposed == 8)


def test_a_draft_model_without_trees_is_refused_by_name() -> None:
    class Chains:
        cache_groups = ()

    setup = DraftSetup(device=torch.device("cpu"), vocab_size=5, max_batch=1, max_context=9, draft_backend=Chains())
    with pytest.raises(UnsupportedError, match="Chains drafts chains; set tree_width=0"):
        DraftModelConfig(tree_width=2).build(setup)
