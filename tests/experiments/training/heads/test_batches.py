"""Batches of texts: every text once a pass, similar lengths together, and the same batches for the same seed."""

import pytest

from experiments.training.heads.batches import TextBatches
from experiments.training.heads.texts import Text

LENGTHS = (5, 40, 6, 41, 7, 42, 300, 9)
TEXTS = [Text(tokens=tuple(range(length)), num_prompt=2, max_tokens=length) for length in LENGTHS]


def batches(seed: int = 0, size: int = 2) -> TextBatches:
    return TextBatches(TEXTS, size=size, limit=64, seed=seed)


def test_a_pass_has_every_text_once_and_the_next_is_another_order() -> None:
    made = batches()
    first, second = ([made.of(step) for step in range(begin, begin + 4)] for begin in (0, 4))
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(8))
    assert any(batches(seed).of(0) != first[0] for seed in range(1, 6))
    assert [batches().of(step) for step in (5, 2)] == [second[1], first[2]]


def test_texts_of_similar_length_share_a_batch() -> None:
    made = batches(size=4)
    for step in range(6):
        lengths = [LENGTHS[number] for number in made.of(step)]
        assert max(lengths) < 10 or min(lengths) >= 40


@pytest.mark.parametrize("size", [8, 100])
def test_few_texts_are_one_batch(size: int) -> None:
    assert sorted(batches(size=size).of(3)) == list(range(8))
