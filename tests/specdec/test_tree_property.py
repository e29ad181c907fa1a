"""Trees of any shape and order leave the output of plain decoding, whatever shares the batch and however few pages."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.api import LAST_LAYER, DrafterNeeds, DraftInput, Proposal
from specdec.engine import Engine, EngineConfig
from specdec.identities import check_identities
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, TableTarget, run_checked
from specdec.verifiers import GreedyVerifier, GumbelVerifier

VOCABULARY, MAX_CONTEXT, EOS = 7, 44, 0
WORDS = "abcdefg"


@dataclass(frozen=True)
class Shape:
    """Seeds of random trees: how many nodes, how bushy, and whether nodes are shuffled and siblings may be equal."""

    seed: int
    most: int
    bushy: float
    shuffled: bool
    correct: float


class RandomTrees:
    """Trees of tokens that are often those of plain decoding, with the right texts given; node order is free."""

    needs = DrafterNeeds(hidden_layers=(LAST_LAYER,), history=True, trees=True)

    def __init__(self, shape: Shape, texts: Sequence[tuple[int, ...]]) -> None:
        self.num_draft_tokens = shape.most
        self._shape, self._texts = shape, texts
        self._random = random.Random(shape.seed)
        self.num_trees = 0

    def propose(self, inputs: DraftInput) -> Proposal | None:
        self._check(inputs)
        lines = [
            self._tree(list(history), self._random.randint(0, limit) if wanted else 0)
            for history, wanted, limit in zip(inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True)
        ]
        width = max(len(tokens) for tokens, _ in lines)
        if width == 0:
            return None
        pad = [([*tokens, *[99] * (width - len(tokens))], [*p, *[77] * (width - len(p))]) for tokens, p in lines]
        return Proposal(
            tokens_BK=torch.tensor([tokens for tokens, _ in pad]),
            num_drafted_B=torch.tensor([len(tokens) for tokens, _ in lines]),
            parents_BK=torch.tensor([parents for _, parents in pad]),
        )

    def forget(self, rows: Sequence[int]) -> None:
        pass

    def _check(self, inputs: DraftInput) -> None:
        """Hidden states and following tokens are those of the committed texts, as if chains had been verified."""
        layout = inputs.layout
        assert inputs.hidden_TD[:, 1].tolist() == list(layout.positions)
        for b, history in enumerate(inputs.histories):
            first, start = layout.query_starts[b], layout.start_positions[b]
            for j in range(int(inputs.num_committed_B[b])):
                assert int(inputs.hidden_TD[first + j, 0]) == history[start + j]
                assert int(inputs.next_tokens_T[first + j]) == history[start + j + 1]

    def _tree(self, history: list[int], count: int) -> tuple[list[int], list[int]]:
        rng, parents, tokens, paths = self._random, [], [], []
        text = next((t for t in self._texts if t[: len(history)] == tuple(history)), ())
        for node in range(count):
            parent = rng.randrange(-1, node) if rng.random() < self._shape.bushy else node - 1
            path = [*(paths[parent] if parent >= 0 else history)]
            right = text[len(path)] if len(path) < len(text) and text[: len(path)] == tuple(path) else 0
            tokens.append(right if rng.random() < self._shape.correct else rng.randrange(VOCABULARY))
            parents.append(parent)
            paths.append([*path, tokens[-1]])
        order = list(range(count))
        if self._shape.shuffled:
            rng.shuffle(order)
        number = {old: new for new, old in enumerate(order)}
        self.num_trees += any(parent != node - 1 for node, parent in enumerate(parents))
        return [tokens[old] for old in order], [number.get(parents[old], -1) for old in order]


shapes = st.builds(
    Shape,
    seed=st.integers(0, 2**20),
    most=st.integers(1, 9),
    bushy=st.sampled_from([0.3, 0.8, 1.0]),
    shuffled=st.booleans(),
    correct=st.sampled_from([0.3, 0.8]),
)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 3),
    max_new_tokens=st.integers(2, 30),
    min_new_tokens=st.integers(0, 2),
    stop=st.lists(st.text(WORDS, min_size=1, max_size=3), max_size=1).map(tuple),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.booleans(),
)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=MAX_CONTEXT - 1).map(tuple)


def target_of(window: int, rows_per_page: int) -> TableTarget:
    return TableTarget(
        vocab_size=VOCABULARY, max_context=MAX_CONTEXT, window=window, rows_per_page=rows_per_page, sharpness=2.0
    )


def letters(ids: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in ids)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    workload=st.lists(st.tuples(prompts, samplings), min_size=1, max_size=4),
    window=st.integers(3, 9),
    rows_per_page=st.integers(1, 5),
    max_batch=st.integers(1, 3),
    chunk=st.integers(1, 12),
    roomy=st.booleans(),
    verifier=st.sampled_from([GreedyVerifier(), GumbelVerifier()]),
)
def test_trees_leave_the_output_of_plain_decoding(
    shape, workload, window, rows_per_page, max_batch, chunk, roomy, verifier
) -> None:
    requests = [Request(request_id=str(i), prompt=p, sampling=s) for i, (p, s) in enumerate(workload)]
    plain = {}
    for request in requests:
        engine = Engine(target_of(window, rows_per_page), PlainDrafter(), verifier, EngineConfig(), (EOS,), letters)
        plain.update(run_checked(engine, [request]))
    texts = [output.prompt_ids + output.output_ids for output in plain.values()]
    drafter = RandomTrees(shape, texts)
    least = 4 + (max(MAX_CONTEXT, window + max(chunk, shape.most + 1)) + shape.most) // rows_per_page
    config = EngineConfig(max_batch=max_batch, prefill_chunk=chunk, num_pages=None if roomy else least)
    engine = Engine(target_of(window, rows_per_page), drafter, verifier, config, (EOS,), letters)
    found = run_checked(engine, requests)
    for name, output in plain.items():
        assert found[name].output_ids == output.output_ids
        assert found[name].finish_reason is output.finish_reason
        assert found[name].text == output.text
        if output.logprobs is not None:
            assert found[name].logprobs == pytest.approx(output.logprobs, abs=1e-5)
    rows = [step for output in found.values() for step in output.steps]
    lengths = {(name, 0): len(output.output_ids) for name, output in found.items()}
    assert check_identities(rows, lengths) == ()
    for step in rows:
        depth = max((len(path) for path in paths_of(step.parents or tuple(range(-1, step.proposed - 1)))), default=0)
        assert step.depth == depth and step.accepted <= depth <= step.verified == step.proposed


def paths_of(parents: Sequence[int]) -> list[list[int]]:
    found = []
    for node in range(len(parents)):
        path = []
        while node >= 0:
            path.append(node)
            node = parents[node]
        found.append(path)
    return found
