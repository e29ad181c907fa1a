"""The cached head against its whole-sequence forward: ragged catch-up, rejection, prompts in chunks, streams."""

import random

import pytest
import torch

from backends.eagle3.backend import Eagle3Backend
from backends.eagle3.dense import dense_eagle3
from backends.eagle3.model import Eagle3Model
from specdec.api import RoundLayout
from specdec.errors import CapacityError, ConfigError, MetadataError

WIDTH, VOCABULARY, LENGTH = 16, 23, 40


def precise(model: Eagle3Model) -> Eagle3Model:
    """The same head in float64, where another order of a sum does not show."""
    return model.double()


class Text:
    """A text with random states, and what the head says of it at every depth."""

    def __init__(self, model: Eagle3Model, *, width: int, seed: int, depth: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)
        self.hidden = torch.randn(LENGTH, width, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            own = dense_eagle3(model, self.hidden[None], self.tokens[None, 1:], depth=depth)
            self.logits = [model.target_logits(states[0]) for states in own]


def check_rounds(
    model: Eagle3Model, backend: Eagle3Backend, pass_of, *, batch: int, width: int, depth: int, seed: int
) -> None:
    """Rounds in which every request commits another number of its rows; each step equals the dense forward."""
    rng = random.Random(seed)
    texts = [Text(model, width=width, seed=seed + b, depth=depth) for b in range(batch)]
    rows = rng.sample(range(4), batch)
    positions = [0] * batch
    chunks = True
    while max(positions) < LENGTH - depth - 3:
        lens = [rng.randint(1, 6) if chunks else rng.randint(1, 3) for _ in range(batch)]
        committed = lens if chunks else [rng.randint(1, n) for n in lens]
        layout = RoundLayout(
            rows=tuple(rows),
            start_positions=tuple(positions),
            query_lens=tuple(lens),
            num_prefill_reqs=batch if chunks else 0,
        )
        hidden, following = [], []
        for text, start, length, kept in zip(texts, positions, lens, committed, strict=True):
            states = text.hidden[start : start + length].clone()
            states[kept:] = torch.randn(length - kept, width, dtype=torch.float64) * 9
            hidden.append(states)
            following += [int(text.tokens[start + 1 + i]) if i < kept else 0 for i in range(length)]
        found = backend.begin_draft(pass_of(layout, torch.cat(hidden), following, committed))
        positions = [start + kept for start, kept in zip(positions, committed, strict=True)]
        for step in range(depth):
            expected = torch.stack([t.logits[step][p - 1 + step] for t, p in zip(texts, positions, strict=True)])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            if step + 1 < depth:
                backend.advance_draft_forward_metadata(torch.tensor(positions) + step + 1)
                drafted = [int(t.tokens[p + 1 + step]) for t, p in zip(texts, positions, strict=True)]
                found = backend.forward(torch.tensor(drafted))
        chunks = False


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, {"draft_vocab_size": 9}, {"norm_before_residual": True}])
def test_every_step_equals_the_dense_forward_after_ragged_acceptance(head, pass_of, batch, changes) -> None:
    model = precise(head(**changes))
    for seed in range(3):
        backend = Eagle3Backend(model, target_hidden_size=WIDTH, max_rows=4)
        check_rounds(model, backend, pass_of, batch=batch, width=3 * WIDTH, depth=4, seed=seed)


@pytest.mark.parametrize("target_width", [WIDTH, 2 * WIDTH])
def test_streams_are_read_flattened_or_as_their_mean(head, pass_of, target_width) -> None:
    model = precise(head(target_width=target_width))
    backend = Eagle3Backend(model, target_hidden_size=WIDTH, num_streams=2, max_rows=4)
    check_rounds(model, backend, pass_of, batch=2, width=6 * WIDTH, depth=3, seed=1)
    hidden = torch.randn(5, 3, 2, WIDTH, dtype=torch.float64)
    wide = hidden.mean(2) if target_width == WIDTH else hidden
    torch.testing.assert_close(model.fuse(hidden.flatten(1)), model.fc(wide.flatten(1)))


def test_a_row_can_be_used_again_from_its_beginning(head, pass_of) -> None:
    model = precise(head())
    backend = Eagle3Backend(model, target_hidden_size=WIDTH, max_rows=4)
    for seed in range(2):
        check_rounds(model, backend, pass_of, batch=3, width=3 * WIDTH, depth=2, seed=seed)


def test_the_cache_grows_beyond_its_first_size(head, pass_of) -> None:
    model = precise(head())
    backend = Eagle3Backend(model, target_hidden_size=WIDTH, max_rows=1)
    hidden, tokens = torch.randn(300, 3 * WIDTH, dtype=torch.float64), torch.randint(VOCABULARY, (301,))
    layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(300,), num_prefill_reqs=1)
    found = backend.begin_draft(pass_of(layout, hidden, tokens[1:].tolist(), [300]))
    with torch.no_grad():
        expected = model.target_logits(dense_eagle3(model, hidden[None], tokens[None, 1:])[0][0, -1:])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_what_does_not_fit_is_refused_by_name(head, pass_of) -> None:
    with pytest.raises(ConfigError, match="reads states of width 48, the target's layers give 16 or 32"):
        Eagle3Backend(head(target_width=48), target_hidden_size=WIDTH, num_streams=2, max_rows=1)
    backend = Eagle3Backend(head(), target_hidden_size=WIDTH, max_rows=1)
    layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(2,))
    with pytest.raises(MetadataError, match=r"layers \[0, 2, 4\], got none"):
        backend.begin_draft(pass_of(layout, None, [1, 2], [2]))
    with pytest.raises(MetadataError, match="48 wide together, got 16"):
        backend.begin_draft(pass_of(layout, torch.zeros(2, WIDTH), [1, 2], [2]))
    far = RoundLayout(rows=(1,), start_positions=(0,), query_lens=(2,))
    with pytest.raises(CapacityError, match="row 1 exceeds the 1 rows"):
        backend.begin_draft(pass_of(far, torch.zeros(2, 3 * WIDTH), [1, 2], [2]))
    with pytest.raises(MetadataError, match="begin_draft opens a draft"):
        backend.advance_draft_forward_metadata(torch.tensor([1]))
