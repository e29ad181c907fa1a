"""A paged pass gives what a whole-sequence pass gives, however the tokens are cut and wherever pages lie."""

import pytest
import torch


def cut(tokens, sizes):
    """Consecutive (start, tokens) pieces of the given sizes, repeated until the text ends."""
    start, i = 0, 0
    while start < len(tokens):
        size = sizes[i % len(sizes)]
        yield start, tokens[start : start + size]
        start, i = start + size, i + 1


def paged_logits(world, tokens, sizes, *, prefill):
    parts = [
        world.run([(1, start, piece)], num_prefill_reqs=int(prefill)).logits_RV for start, piece in cut(tokens, sizes)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 127, 128, 129, 257, 300])
def test_paged_prompt_equals_dense_in_one_piece(world, text, length):
    tokens = text[:length]
    torch.testing.assert_close(
        paged_logits(world, tokens, [length], prefill=True), world.dense_logits(tokens), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("sizes", [[1], [2], [3], [4], [5, 1], [16], [17], [63], [64], [129], [7, 130, 1]])
def test_paged_prompt_equals_dense_in_blocks(world, text, sizes):
    tokens = text[:300]
    prefill = max(sizes) > 8
    torch.testing.assert_close(
        paged_logits(world, tokens, sizes, prefill=prefill), world.dense_logits(tokens), atol=2e-5, rtol=1e-4
    )
