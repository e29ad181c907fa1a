"""Indexer: scores and the choice of rows, with ties and hostile values."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.indexer import Indexer, select_topk, topk_mask
from backends.deepseek_v4.rope import Rope


def test_scores_are_weighted_rectified_products(tiny, randomise):
    indexer = Indexer(tiny())
    randomise(indexer)
    x, latent, keys = torch.randn(2, 3, 64), torch.randn(2, 3, 24), torch.randn(2, 5, 16)
    q = indexer.query(latent, Rope(cos=torch.ones(3, 8), sin=torch.zeros(3, 8)))
    torch.testing.assert_close(q.flatten(-2), indexer.wq_b(latent))
    scores = indexer.scores(q, indexer.weights(x), keys)
    head_weights = indexer.weights_proj(x) * 16**-0.5
    for b, t, n in ((0, 0, 0), (1, 2, 4), (0, 1, 3)):
        expected = sum(head_weights[b, t, h] * (q[b, t, h] @ keys[b, n]).relu() * 16**-0.5 for h in range(16))
        torch.testing.assert_close(scores[b, t, n], expected, atol=1e-5, rtol=1e-4)


def test_few_visible_rows_are_all_taken_in_order():
    scores = torch.tensor([[0.0, 5.0, 1.0, float("nan")]])
    visible = torch.tensor([[True, True, True, False]])
    assert select_topk(scores, 5, visible).tolist() == [[0, 1, 2, -1, -1]]


def test_equal_scores_take_the_lowest_index_whatever_the_width():
    scores = torch.zeros(40)
    scores[7] = 1.0
    for width in (10, 33, 40):
        assert select_topk(scores[:width], 4, torch.ones(width, dtype=torch.bool)).tolist() == [0, 1, 2, 7]


def test_no_rows_give_no_choice():
    assert select_topk(torch.zeros(2, 0), 3, torch.zeros(2, 0, dtype=torch.bool)).tolist() == [[-1] * 3] * 2


@settings(deadline=None, max_examples=60)
@given(num=st.integers(0, 40), k=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_choice_is_the_best_visible_rows_and_the_mask_agrees(num, k, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (3, num), generator=generator).float()
    visible = torch.rand(3, num, generator=generator) < 0.7
    hostile = scores.masked_fill(~visible, float("nan"))
    chosen = select_topk(hostile, k, visible)
    assert chosen.shape == (3, k)
    for row in range(3):
        order = sorted((i for i in range(num) if visible[row, i]), key=lambda i: (-scores[row, i].item(), i))
        expected = sorted(order[:k])
        assert chosen[row].tolist() == expected + [-1] * (k - len(expected))
        assert topk_mask(hostile, k, visible)[row].nonzero().flatten().tolist() == expected
