"""Invariant 3: packed verify passes equal one-token passes, whatever is accepted and wherever pages and blocks end."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import AttentionKind

BOUNDARIES = (4, 64, 128, 256)
REACH, WIDTH, VOCABULARY = 8, 4, 97
VALUES = {"atol": 2e-5, "rtol": 1e-4, "equal_nan": True}
# Types of caches, indexer keys and weights, and the number of examples.
STORED = [
    ("fp32", "plain", torch.float32, 5),
    ("bf16", "plain", torch.bfloat16, 3),
    ("fp8", "mxfp4", torch.float32, 2),
]

rounds_over_boundaries = st.fixed_dictionaries(
    {
        "boundaries": st.lists(st.sampled_from(BOUNDARIES), min_size=1, max_size=2, unique=True),
        "before": st.integers(1, WIDTH),
        # Tokens of each pass, and how many of them each request accepts.
        "rounds": st.lists(
            st.integers(1, WIDTH).flatmap(
                lambda width: st.tuples(st.just(width), st.integers(1, width), st.integers(1, width))
            ),
            min_size=1,
            max_size=3,
        ),
    }
)


def buffers_of(world) -> Iterator[torch.Tensor]:
    """Every cache buffer of the target without page 0, which belongs to nobody."""
    pool = world.target.pool
    for layer, kind in enumerate(pool.kinds):
        yield pool.swa(layer)[1:]
        if kind.compresses:
            yield pool.compressed(layer)[1:]
            yield pool.state(layer)[1:]
        if kind is AttentionKind.CSA:
            yield pool.index_keys(layer)[1:]
            yield pool.index_state(layer)[1:]


class Twins:
    """A world that verifies packed tokens and one that decodes single tokens, from the same caches on.

    Row i of both holds the text up to ``REACH`` positions before the i-th boundary.
    """

    def __init__(self, make, text: list[int]) -> None:
        self.packed, self.single, self.text = make(), make(), text
        for row, boundary in enumerate(BOUNDARIES):
            for start in range(0, max(0, boundary - REACH), REACH):
                self.packed.run([(row, start, text[start : start + REACH])])
        self._start = [buffer.clone() for buffer in buffers_of(self.packed)]

    def play(self, boundaries: list[int], before: int, rounds: list[tuple[int, int, int]]) -> Iterator[tuple]:
        """Logits of every committed token by (packed, single) passes; the last pass is accepted whole."""
        for world in (self.packed, self.single):
            for buffer, kept in zip(buffers_of(world), self._start, strict=True):
                buffer.copy_(kept)
        rows = [BOUNDARIES.index(boundary) for boundary in boundaries]
        lengths = []
        for row, boundary in zip(rows, boundaries, strict=True):
            first, start = max(0, boundary - REACH), max(0, boundary - before)
            lengths.append(start)
            for world in (self.packed, self.single):
                if start > first:
                    world.run([(row, first, self.text[first:start])])
        for width, *accepts in [*rounds, (WIDTH, WIDTH, WIDTH)]:
            chunks = [self._guess(row, n, width, a) for row, n, a in zip(rows, lengths, accepts, strict=False)]
            packed = self.packed.run(chunks).logits_RV
            for i, row in enumerate(rows):
                for k in range(accepts[i]):
                    token = self.text[lengths[i] : lengths[i] + 1]
                    yield packed[i * width + k], self.single.run([(row, lengths[i], token)]).logits_RV[0]
                    lengths[i] += 1

    def _guess(self, row: int, length: int, width: int, accepted: int) -> tuple[int, int, list[int]]:
        """A chunk of ``width`` tokens of which the first ``accepted`` are right."""
        tokens = self.text[length : length + width]
        return row, length, tokens[:accepted] + [(token + 1) % VOCABULARY for token in tokens[accepted:]]


@pytest.mark.parametrize("stored", STORED)
def test_invariant_3_packed_verify_equals_sequential_decodes_in_bits_and_bytes(world_of, small_config, text, stored):
    cache_dtype, indexer_dtype, dtype, num_examples = stored
    config = small_config if cache_dtype != "fp8" else replace(small_config, head_dim=80)
    twins = Twins(
        lambda: world_of(
            config=config,
            batch_invariant=True,
            fixed_rows=8,
            cache_dtype=cache_dtype,
            indexer_dtype=indexer_dtype,
            dtype=dtype,
            max_context=320,
        ),
        text,
    )

    @settings(deadline=None, max_examples=num_examples)
    @given(rounds_over_boundaries)
    @example({"boundaries": [4, 128], "before": 1, "rounds": [(1, 1, 1)]})
    def check(case):
        for packed, single in twins.play(**case):
            assert packed.equal(single)
        # The last pass overwrote what was rejected, so every byte of both is that of a committed position.
        for one, other in zip(buffers_of(twins.packed), buffers_of(twins.single), strict=True):
            assert one.view(torch.uint8).equal(other.view(torch.uint8))

    check()


def test_invariant_3_packed_verify_equals_sequential_decodes_in_values(world_of, text):
    twins = Twins(lambda: world_of(max_context=320), text)

    @settings(deadline=None, max_examples=6)
    @given(rounds_over_boundaries)
    def check(case):
        for packed, single in twins.play(**case):
            torch.testing.assert_close(packed, single, **VALUES)
        for one, other in zip(buffers_of(twins.packed), buffers_of(twins.single), strict=True):
            torch.testing.assert_close(one, other, **VALUES)

    check()
