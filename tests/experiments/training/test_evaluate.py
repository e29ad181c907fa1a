"""Held-out protocol: each token scored once, bytes per token counted, a perfect drafter overlaps in full."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.training.architecture import build_models, official_config
from experiments.training.data import TokenisedCorpus
from experiments.training.evaluate import evaluate, windows_of


@pytest.mark.parametrize("size", [2, 3, 16, 17, 24, 25, 40, 41])
def test_windows_score_every_token_but_the_first_exactly_once(size):
    document = np.arange(100, 100 + size)
    scored: Counter[int] = Counter()
    for window in windows_of(document, 16):
        assert len(window.tokens) == 17
        assert window.first_scored in (0, 8) and window.last_scored <= 16
        scored.update(window.tokens[1:][window.first_scored : window.last_scored].tolist())
    assert scored == Counter(document[1:].tolist())


@pytest.fixture
def models(trainer_config):
    raw = official_config(trainer_config().model, context=32, bos=2, eos=2)
    return build_models(raw, seed=1, device="cpu")


def corpus_of(documents: list[list[int]]) -> TokenisedCorpus:
    return TokenisedCorpus(
        train=np.zeros(1, dtype=np.uint16),
        heldout=tuple(np.array(d, dtype=np.uint16) for d in documents),
        heldout_names=("x",) * len(documents),
        token_bytes=np.full(300, 2),
        separator=2,
    )


def test_uniform_target_costs_its_vocabulary_and_depth_zero_leaves_drafts_out(models):
    with torch.no_grad():
        models.target.head.weight.zero_()
    documents = [[2, *range(10, 60)], [2, 7, 8]]
    quality = evaluate(models, corpus_of(documents), length=32, sequences=2, depth=0)
    assert (quality.scored_tokens, quality.scored_bytes) == (52, 104)
    assert quality.bits_per_byte == pytest.approx(math.log2(300) / 2, rel=1e-5)
    assert quality.drafts == () and quality.tokens_per_step == ()


def test_identical_distributions_overlap_in_full(models):
    with torch.no_grad():
        models.target.head.weight.zero_()
    quality = evaluate(models, corpus_of([[2, *range(10, 60)]]), length=32, sequences=2, depth=3)
    for draft in quality.drafts:
        assert draft.overlap == pytest.approx(1.0, abs=1e-5) and draft.agrees == 1.0
    # Survival loses only the slots whose draft would begin before the window.
    assert 3.8 < quality.tokens_per_step[2] <= 4.0 + 1e-4
    assert SimpleNamespace(**quality.as_dict()).window_tokens == 32


def test_batches_of_windows_do_not_change_the_result(models):
    documents = corpus_of([[2, *range(10, 60)], [2, *range(20, 40)]])
    one, many = (evaluate(models, documents, length=16, sequences=n, depth=2) for n in (1, 5))
    assert one.nats_per_token == pytest.approx(many.nats_per_token, rel=1e-5)
    assert one.drafts[1].overlap == pytest.approx(many.drafts[1].overlap, rel=5e-2)
