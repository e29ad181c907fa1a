"""Checks of targets and draft models over paged caches, for other people's test suites; know no particular model.

Everything is compared with a target's single pass over the whole text: any way of splitting the text, of laying out the
pages and of sharing the batch must give the same laws.
"""

from collections.abc import Mapping

import torch

from specdec.api import LAST_LAYER, CacheGroupSpec, Target
from specdec.paged_runs import PagedRuns, Piece, plan_for

NUM_TOKENS = 40
TOLERANCE = 1e-4
BLOCK = 5


def pages_to_check(cache_groups: tuple[CacheGroupSpec, ...], *, num_tokens: int = NUM_TOKENS) -> Mapping[str, int]:
    """Pages of each cache group that a target needs to be checked."""
    groups = [spec.group_id for spec in cache_groups]
    return plan_for(cache_groups, num_tokens=num_tokens, draft_groups=groups).num_pages


def text_of(target: Target, *, num_tokens: int, seed: int) -> tuple[int, ...]:
    """A text without meaning, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(target.vocab_size, (num_tokens,), generator=generator).tolist())


def same_laws(what: str, found_XV: torch.Tensor, wanted_XV: torch.Tensor, tolerance: float) -> None:
    """Raise AssertionError unless both are logits of the same laws."""
    assert found_XV.shape == wanted_XV.shape, f"{what}: shape {tuple(found_XV.shape)}, not {tuple(wanted_XV.shape)}"
    distance = (found_XV.double().softmax(-1) - wanted_XV.double().softmax(-1)).abs().amax()
    assert distance <= tolerance, f"{what}: probabilities differ by {float(distance):.3g} (NaN is a difference)"


def check_target(target: Target, *, num_tokens: int = NUM_TOKENS, tolerance: float = TOLERANCE) -> None:
    """Run a target in every way that an engine may: chunks, verify blocks, rejected rows, mixed batches, reused rows.

    num_tokens  length of the texts; beyond the widest window and the coarsest compression it checks those, too
    tolerance   largest difference of two probabilities that are the same

    The target's caches must have the pages of ``pages_to_check``. Raises AssertionError that names what differs.
    """
    assert isinstance(target, Target), "a target has vocab_size, max_context, device, cache_groups and forward"
    assert num_tokens <= target.max_context, f"texts of {num_tokens} tokens, the target takes {target.max_context}"
    _TargetCheck(target, num_tokens, tolerance).all()


class _TargetCheck:
    def __init__(self, target: Target, num_tokens: int, tolerance: float) -> None:
        self._target, self._tolerance = target, tolerance
        self._runs = PagedRuns(target, num_tokens=num_tokens)
        self._text, self._other = (text_of(target, num_tokens=num_tokens, seed=seed) for seed in (1, 2))
        self._head = num_tokens - BLOCK
        self._wanted_XV = self._whole(0, self._text)
        self._runs.release(0)

    def all(self) -> None:
        self._is_a_law()
        self._chunks()
        self._steps()
        self._block()
        self._rejected_rows()
        self._mixed_batch()
        self._reused_row()
        self._hidden_states()

    def _whole(self, row: int, text: tuple[int, ...]) -> torch.Tensor:
        return self._runs.run(Piece(row=row, start=0, tokens=text)).logits[0]

    def _compare(self, what: str, found_XV: torch.Tensor, start: int = 0) -> None:
        same_laws(what, found_XV, self._wanted_XV[start : start + len(found_XV)], self._tolerance)

    def _begin(self, row: int, length: int) -> None:
        self._runs.run(Piece(row=row, start=0, tokens=self._text[:length]))

    def _is_a_law(self) -> None:
        assert self._wanted_XV.dtype == torch.float32, "logits are float32"
        laws_XV = self._wanted_XV.softmax(-1)
        assert bool(((laws_XV.sum(-1) - 1).abs() < self._tolerance).all()), "logits without NaN, with some weight"

    def _chunks(self) -> None:
        start = 0
        for length in (1, 3, 8, len(self._text)):
            part = self._text[start : start + length]
            self._compare("a prompt in chunks", self._runs.run(Piece(row=1, start=start, tokens=part)).logits[0], start)
            start += len(part)
        self._runs.release(1)

    def _steps(self) -> None:
        self._begin(0, self._head)
        for start in range(self._head, len(self._text)):
            step = Piece(row=0, start=start, tokens=self._text[start : start + 1], is_chunk=False)
            self._compare("single decode steps", self._runs.run(step).logits[0], start)
        self._runs.release(0)

    def _block(self) -> None:
        self._begin(2, self._head)
        block = Piece(row=2, start=self._head, tokens=self._text[self._head :], is_chunk=False)
        self._compare("a verify block", self._runs.run(block).logits[0], self._head)
        self._runs.release(2)

    def _rejected_rows(self) -> None:
        self._begin(0, self._head)
        wrong = tuple((token + 1) % self._target.vocab_size for token in self._text[self._head + 1 :])
        drafted = Piece(row=0, start=self._head, tokens=(self._text[self._head], *wrong), is_chunk=False)
        self._compare("the first row of a rejected block", self._runs.run(drafted).logits[0][:1], self._head)
        self._runs.roll_back(0, self._head + 1)
        rest = Piece(row=0, start=self._head + 1, tokens=self._text[self._head + 1 :], is_chunk=False)
        self._compare("the rows after a rejected block", self._runs.run(rest).logits[0], self._head + 1)
        self._runs.release(0)

    def _mixed_batch(self) -> None:
        self._begin(3, self._head)
        chunk = Piece(row=1, start=0, tokens=self._other)
        block = Piece(row=3, start=self._head, tokens=self._text[self._head :], is_chunk=False)
        chunk_XV, block_XV = self._runs.run(chunk, block).logits
        self._compare("a verify block beside a prompt chunk", block_XV, self._head)
        self._runs.release(1, 3)
        same_laws("a prompt chunk beside a verify block", chunk_XV, self._whole(0, self._other), self._tolerance)
        self._runs.release(0)

    def _reused_row(self) -> None:
        self._whole(0, self._other)
        self._runs.release(0)
        self._compare("a row that another request had", self._whole(0, self._text))
        self._runs.release(0)

    def _hidden_states(self) -> None:
        piece = Piece(row=0, start=0, tokens=self._text)
        assert self._runs.run(piece).hidden_TD is None, "hidden states only where layers are named"
        one_TD = self._runs.run(piece, hidden_layers=(LAST_LAYER,)).hidden_TD
        assert one_TD is not None and one_TD.shape[0] == len(self._text), "hidden states of every token"
        assert bool(one_TD.isfinite().all()), "hidden states without NaN"
        two_TD = self._runs.run(piece, hidden_layers=(LAST_LAYER, LAST_LAYER)).hidden_TD
        beside = torch.allclose(two_TD, torch.cat([one_TD, one_TD], dim=1), atol=self._tolerance)
        assert beside, "states of several layers lie side by side, in the order in which they were named"
        self._runs.release(0)
