"""Expected steps along a text against steps that are drawn, and by hand; the comparison of a draft with its target."""

import math
import random

import numpy as np
import pytest
import torch

from experiments.training.heads.acceptance import expected_steps
from experiments.training.heads.objective import OUTSIDE, Teacher, Weighing, compare, counted_slots, loss_of, padded

CPU = torch.device("cpu")


def drawn_steps(kept: np.ndarray, *, num_prompt: int, length: int, max_tokens: int, rng: random.Random):
    """One run of the engine over a text, its acceptance drawn by coins; (depths proposed, depths accepted) by step."""
    known, found = num_prompt + 1, []
    while known < length:
        limit = min(len(kept), max_tokens - known - 1)
        proposed = accepted = 0
        for i in range(limit):
            if known + i >= length:
                break
            proposed += 1
            if accepted == i and rng.random() < kept[i, known + i - 2]:
                accepted += 1
        found.append((proposed, accepted))
        known += accepted + 1
    return found


def test_a_text_of_certain_acceptance_by_hand() -> None:
    kept = np.zeros((2, 8))
    kept[0, 2], kept[1, 3] = 1.0, 1.0  # the draft that begins behind token 3 is right twice
    found = expected_steps(kept, num_prompt=2, length=9, max_tokens=9)
    # Known tokens go 3 -> 4 -> 7 -> 8 -> 9; the last step may draft nothing, the one before it one token.
    assert (found.steps, found.tokens) == (4, 6)
    assert found.proposed.tolist() == [3, 2] and found.accepted.tolist() == [1, 1]
    assert found.tokens_per_step == 1.5


@pytest.mark.parametrize("max_tokens", [20, 24])
def test_expected_steps_are_the_mean_of_drawn_ones(max_tokens: int) -> None:
    rng, generator = random.Random(0), np.random.default_rng(0)
    kept = generator.random((3, 18))
    texts = {"num_prompt": 4, "length": 20, "max_tokens": max_tokens}
    found, runs = expected_steps(kept, **texts), 4000
    steps = [step for _ in range(runs) for step in drawn_steps(kept, **texts, rng=rng)]
    assert len(steps) / runs == pytest.approx(found.steps, rel=0.02)
    for depth in range(3):
        proposed = sum(p > depth for p, _ in steps) / runs
        accepted = sum(a > depth for _, a in steps) / runs
        assert proposed == pytest.approx(found.proposed[depth], rel=0.02)
        assert accepted == pytest.approx(found.accepted[depth], rel=0.05)


def test_the_chance_to_keep_a_token_averages_to_the_overlap() -> None:
    """Over tokens that the target draws, min(1, q / p) is on average the sum of min(p, q)."""
    p_logits, q_logits = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.0, 0.5, 0.5])
    temperature, total = 0.7, 0.0
    for token in range(3):
        tokens = torch.tensor([[0, 0, token]])
        teacher = Teacher.of(p_logits.expand(1, 3, 3), tokens, temperature=temperature, target_ids_X=None)
        found = compare(q_logits.expand(1, 2, 3), teacher, temperature=temperature)
        total += float(teacher.law_BSX[0, 0, token] * found.kept[0, 0])
    assert total == pytest.approx(float(found.overlap[0, 0]))


def test_tokens_outside_of_the_draft_vocabulary_are_never_kept() -> None:
    logits = torch.tensor([[[0.0, 2.0, 0.0, 0.0]] * 4])
    ids = torch.tensor([0, 3])
    teacher = Teacher.of(logits, torch.tensor([[0, 0, 1, 3]]), temperature=0.0, target_ids_X=ids)
    assert teacher.text_BS.tolist() == [[OUTSIDE, 1]] and teacher.best_BS.tolist() == [[OUTSIDE, OUTSIDE]]
    drafts = torch.tensor([[[0.0, 5.0]] * 3])
    assert compare(drafts, teacher, temperature=0.0).kept.tolist() == [[0.0, 1.0]]
    assert compare(drafts, teacher, temperature=1.0).kept[0, 0] == 0
    law = logits[0, 0].softmax(-1)[ids]
    overlap = compare(drafts, teacher, temperature=1.0).overlap[0, 0]
    assert float(overlap) == pytest.approx(float(torch.minimum(law, drafts[0, 0].softmax(-1)).sum()))


def test_only_drafts_that_the_engine_could_make_count() -> None:
    batch = padded([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4]], [3, 2], CPU, limit=6)
    assert batch.tokens_BL.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 0, 0]]
    # Slot i drafts token i + 2; the first token behind a prompt is never drafted.
    assert counted_slots(batch, 1).tolist() == [[False, False, True, True], [False, True, False, False]]
    assert counted_slots(batch, 2).tolist() == [[False, False, False, True], [False] * 4]
    logits = torch.zeros(2, 6, 8)
    teacher = Teacher.of(logits, batch.tokens_BL, temperature=0.0, target_ids_X=None)
    weighing = Weighing(temperature=0.0, distil=0.5, decay=0.5)
    total, parts = loss_of([logits[:, 1:]] * 2, teacher, batch, weighing)
    assert parts == pytest.approx([math.log(8)] * 2) and float(total) == pytest.approx(math.log(8))
