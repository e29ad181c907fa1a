"""Dynamic trees over a draft whose logits depend on the path: the best nodes by cumulative probability, no others."""

import itertools

import pytest
import torch

from drafters.tree_growth import Growth, grow
from specdec.api import ROOT, Draft, DraftTree, SiblingDraws, Siblings

VOCABULARY, DEPTH = 5, 3


def law_after(path: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(path) % 1000)
    return torch.randn(VOCABULARY, generator=generator) * 2


class PathDraft:
    """Logits that are a function of the drafted path."""

    cache_groups = ()

    def __init__(self) -> None:
        self.paths: list[list[tuple[int, ...]]] = []

    def forward_level(self, seq_lens_B, tokens_BM, parents_BM):
        rows = []
        for b, (tokens, parents) in enumerate(zip(tokens_BM.tolist(), parents_BM.tolist(), strict=True)):
            if b == len(self.paths):
                self.paths.append([])
            known = list(self.paths[b])
            new = [(*(() if p == ROOT else known[p]), t) for t, p in zip(tokens, parents, strict=True)]
            self.paths[b] += new
            rows.append(torch.stack([law_after(path) for path in new]))
        return torch.stack(rows)


class Choose:
    """The most probable tokens, or reported laws where they are not asked to be greedy."""

    def __init__(self, *, samples: bool = False) -> None:
        self.samples = samples

    def draw(self, logits_BV, positions_B, *, greedy=False) -> Draft:
        return Draft(tokens_B=logits_BV.argmax(1))

    def draw_siblings(self, logits_BV, positions_B, *, count, draws=SiblingDraws.WITHOUT_REPLACEMENT, greedy=False):
        best = logits_BV.sort(dim=1, descending=True, stable=True).indices[:, :count]
        num_B = torch.full((len(best),), best.shape[1])
        if self.samples and not greedy:
            return Siblings(tokens_BS=best.flip(1), num_B=num_B, probs_BV=logits_BV.softmax(1))
        return Siblings(tokens_BS=best, num_B=num_B)


def paths_of(proposal, b: int) -> list[tuple[int, ...]]:
    count = int(proposal.num_drafted_B[b])
    tree = DraftTree(tuple(proposal.parents_BK[b, :count].tolist()))
    assert tree.is_ordered
    return [tuple(int(proposal.tokens_BK[b, n]) for n in tree.path(node)) for node in range(count)]


def all_scores() -> dict[tuple[int, ...], float]:
    scores = {(): 0.0}
    for depth in range(1, DEPTH + 1):
        for path in itertools.product(range(VOCABULARY), repeat=depth):
            scores[path] = scores[path[:-1]] + float(law_after(path[:-1]).log_softmax(0)[path[-1]])
    del scores[()]
    return scores


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("limits", [(8, 8), (8, 3), (5, 0)])
def test_a_full_frontier_finds_the_best_nodes_of_all(make_input, samples, limits) -> None:
    inputs = make_input([[1, 2], [1, 2, 3]], limits=limits, sampling=Choose(samples=samples))
    growth = Growth(width=VOCABULARY**2, depth=DEPTH, max_nodes=8, greedy=False)
    proposal = grow(PathDraft(), inputs, law_after(()).expand(2, -1), growth)
    best = sorted(all_scores().items(), key=lambda item: -item[1])
    assert proposal.probs_BKV is None and proposal.sibling_draws is None
    for b, limit in enumerate(limits):
        assert sorted(paths_of(proposal, b)) == sorted(path for path, _ in best[:limit])


def test_a_narrow_frontier_follows_the_best_paths_only(make_input) -> None:
    inputs = make_input([[1, 2]], sampling=Choose())
    draft = PathDraft()
    proposal = grow(draft, inputs, law_after(())[None], Growth(width=1, depth=3, max_nodes=31, greedy=True))
    (chain,) = [path for path in paths_of(proposal, 0) if len(path) == 3]
    expected: tuple[int, ...] = ()
    for _ in range(3):
        expected = (*expected, int(law_after(expected).argmax()))
    assert chain == expected and len(draft.paths[0]) == 2
