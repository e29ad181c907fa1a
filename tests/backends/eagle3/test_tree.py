"""Nodes fed side by side against chains: every node's logits are those of its own path."""

import random

import torch

from backends.eagle3.backend import Eagle3Backend
from backends.eagle3.model import Eagle3Model
from specdec.api import RoundLayout

WIDTH, VOCABULARY = 16, 23


def opened(model: Eagle3Model, pass_of, prefix: list[int], hidden: torch.Tensor) -> tuple[Eagle3Backend, torch.Tensor]:
    """A backend that has caught up over two texts of different lengths."""
    backend = Eagle3Backend(model, target_hidden_size=WIDTH, max_rows=3)
    layout = RoundLayout(rows=(2, 0), start_positions=(0, 0), query_lens=(7, 4), num_prefill_reqs=2)
    backend.begin_draft(pass_of(layout, hidden, prefix, [7, 4]))
    return backend, torch.tensor([7, 4])


def test_every_node_is_computed_as_the_end_of_its_own_path(head, pass_of) -> None:
    model = head(draft_vocab_size=11).double()
    rng = random.Random(0)
    prefix = [rng.randrange(VOCABULARY) for _ in range(11)]
    hidden = torch.randn(11, 3 * WIDTH, dtype=torch.float64)
    levels = [([[3, 9, 3], [1, 2, 4]], [[-1] * 3] * 2), ([[5, 6], [7, 8]], [[2, 0], [1, 1]]), ([[1], [0]], [[4], [3]])]
    backend, lens_B = opened(model, pass_of, prefix, hidden)
    found = [backend.forward_level(lens_B, torch.tensor(tokens), torch.tensor(parents)) for tokens, parents in levels]
    for b in range(2):
        tokens = [token for level, _ in levels for token in level[b]]
        parents = [parent for _, level in levels for parent in level[b]]
        logits = torch.cat([level[b] for level in found])
        for node in range(len(tokens)):
            path, at = [], node
            while at >= 0:
                path.append(at)
                at = parents[at]
            chain, lens_B = opened(model, pass_of, prefix, hidden)
            for step, on_way in enumerate(reversed(path)):
                chain.advance_draft_forward_metadata(lens_B + step + 1)
                expected = chain.forward(torch.tensor([tokens[on_way]] * 2))[b]
            torch.testing.assert_close(logits[node], expected, atol=1e-6, rtol=1e-6)


def test_a_chain_after_a_tree_starts_from_a_clean_round(head, pass_of) -> None:
    model = head().double()
    hidden, prefix = torch.randn(11, 3 * WIDTH, dtype=torch.float64), list(range(11))
    backend, lens_B = opened(model, pass_of, prefix, hidden)
    backend.forward_level(lens_B, torch.tensor([[3, 9], [1, 2]]), torch.full((2, 2), -1))
    fresh, _ = opened(model, pass_of, prefix, hidden)
    layout = RoundLayout(rows=(2, 0), start_positions=(7, 4), query_lens=(1, 1))
    again = pass_of(layout, torch.randn(2, 3 * WIDTH, dtype=torch.float64), [5, 6], [1, 1])
    torch.testing.assert_close(backend.begin_draft(again), fresh.begin_draft(again))
