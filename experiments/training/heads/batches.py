"""TextBatches: which texts each step learns from, in an order that is a function of seed and step alone."""

import random
from collections.abc import Sequence

from experiments.training.heads.texts import Text


class TextBatches:
    """Batches of texts of much the same length, so that little of a batch is padding.

    Each pass over the texts groups them anew and shuffles the groups; what does not fill a group waits for another
    pass. Keeps the order of the pass at hand, since making it is slow for many texts.

    size   texts of a batch; all of them when there are fewer
    limit  tokens of a text that are used
    """

    def __init__(self, texts: Sequence[Text], *, size: int, limit: int, seed: int) -> None:
        self._lengths = [min(len(text.tokens), limit) for text in texts]
        self._size, self._seed = min(size, len(texts)), seed
        self.batches_per_pass = len(texts) // self._size
        self._pass = -1
        self._groups: list[list[int]] = []

    def of(self, step: int) -> list[int]:
        """Numbers of the texts of step ``step`` (from 0)."""
        number, index = divmod(step, self.batches_per_pass)
        if number != self._pass:
            self._pass, self._groups = number, self._order(number)
        return self._groups[index]

    def _order(self, number: int) -> list[list[int]]:
        count, size = len(self._lengths), self._size
        rng = random.Random(self._seed * 1_000_003 + number)
        chosen = rng.sample(range(count), count)[: self.batches_per_pass * size]
        chosen.sort(key=self._lengths.__getitem__)
        groups = [chosen[first : first + size] for first in range(0, len(chosen), size)]
        rng.shuffle(groups)
        return groups
