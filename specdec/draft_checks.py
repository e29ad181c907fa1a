"""A check of draft models under a target's page ids, for other people's test suites; knows no particular model."""

from collections.abc import Sequence

import torch

from specdec.api import LAST_LAYER, Draft, DraftBackend, DraftInput, Target
from specdec.model_checks import BLOCK, NUM_TOKENS, TOLERANCE, same_laws, text_of
from specdec.paged_runs import PagedRuns, Piece, Ran

NUM_STEPS = 3
FILLER_TOKEN = 0


class ArgmaxView:
    """A sampling view without randomness."""

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """See ``api.SamplingView.draw``."""
        return Draft(tokens_B=logits_BV.argmax(dim=-1))


def check_draft_backend(
    target: Target,
    backend: DraftBackend,
    *,
    exact: bool = False,
    hidden_layers: tuple[int, ...] = (LAST_LAYER,),
    num_tokens: int = NUM_TOKENS,
    tolerance: float = TOLERANCE,
) -> None:
    """Run a draft model after passes of a target: catch-ups of every kind, and drafts that are then thrown away.

    exact          the draft's most probable tokens must be the target's own, at every step: for a draft model that is
                   made to be right, the sharpest test of all, since a step at a wrong position is a wrong token
    hidden_layers  states of the target that the model reads; empty for none
    num_tokens     length of the texts
    tolerance      largest difference of two probabilities that are the same

    Target and backend must have the pages of ``pages_to_check``. Raises AssertionError that names what differs.
    """
    assert isinstance(backend, DraftBackend), "a draft model has cache_groups, begin_draft, advance_... and forward"
    known = {spec.group_id for spec in target.cache_groups}
    named = {spec.group_id for spec in backend.cache_groups}
    assert named <= known, f"cache groups {sorted(named - known)} are not the target's"
    _DraftCheck(target, backend, hidden_layers, num_tokens, tolerance).all(exact)


class _DraftCheck:
    def __init__(
        self, target: Target, backend: DraftBackend, hidden_layers: tuple[int, ...], num_tokens: int, tolerance: float
    ) -> None:
        self._target, self._backend = target, backend
        self._hidden_layers, self._tolerance = hidden_layers, tolerance
        groups = [spec.group_id for spec in backend.cache_groups]
        # Behind the text there must be room for what is drafted.
        self._runs = PagedRuns(target, num_tokens=num_tokens + BLOCK, draft_groups=groups)
        self._text, self._other = (text_of(target, num_tokens=num_tokens, seed=seed) for seed in (1, 2))
        self._head = num_tokens - BLOCK
        self._wanted_SV = self._draft_after(self._pass(Piece(row=0, start=0, tokens=self._text[:-1])))
        self._runs.release(0)

    def all(self, exact: bool) -> None:
        assert self._wanted_SV.shape == (NUM_STEPS, self._target.vocab_size), "logits over the target's vocabulary"
        self._chunks()
        self._rejected_rows()
        self._thrown_away()
        self._batch()
        if exact:
            self._is_the_targets_own()

    def _pass(self, *pieces: Piece) -> Ran:
        return self._runs.run(*pieces, hidden_layers=self._hidden_layers, reach=NUM_STEPS)

    def _inputs(self, ran: Ran, committed: Sequence[int], texts: Sequence[Sequence[int]]) -> DraftInput:
        """What a drafter is shown after the pass, when so many rows of each request are final."""
        layout, device = ran.layout, self._target.device
        ends = [start + count for start, count in zip(layout.start_positions, committed, strict=True)]
        followers: list[int] = []
        for start, length, end, text in zip(layout.start_positions, layout.query_lens, ends, texts, strict=True):
            followers += [text[p + 1] if p < end else FILLER_TOKEN for p in range(start, start + length)]
        last = [text[end] for text, end in zip(texts, ends, strict=True)]
        return DraftInput(
            layout=layout,
            next_tokens_T=torch.tensor(followers, device=device),
            hidden_TD=ran.hidden_TD,
            num_committed_B=torch.tensor(list(committed), device=device),
            last_tokens_B=torch.tensor(last, device=device),
            seq_lens_B=torch.tensor(ends, device=device),
            wanted_B=(True,) * layout.num_reqs,
            max_draft_B=(NUM_STEPS,) * layout.num_reqs,
            limits_B=torch.full((layout.num_reqs,), NUM_STEPS, device=device),
            sampling=ArgmaxView(),
            histories=tuple(text[: end + 1] for text, end in zip(texts, ends, strict=True)),
            tables=ran.tables,
        )

    @torch.no_grad()
    def _draft(self, inputs: DraftInput) -> torch.Tensor:
        """Logits [B, steps, V] of a draft of most probable tokens."""
        lengths_B = inputs.seq_lens_B.clone()
        logits_BV = self._backend.begin_draft(inputs)
        steps = [logits_BV.clone()]
        for step in range(1, NUM_STEPS):
            self._backend.advance_draft_forward_metadata(lengths_B + step)
            logits_BV = self._backend.forward(logits_BV.argmax(dim=-1))
            steps.append(logits_BV.clone())
        assert inputs.seq_lens_B.equal(lengths_B), "a draft model leaves its input as it was"
        return torch.stack(steps, dim=1)

    def _draft_after(self, ran: Ran) -> torch.Tensor:
        """Logits [steps, V] after a pass over one request's text, all rows of which are final."""
        return self._draft(self._inputs(ran, ran.layout.query_lens, (self._text,)))[0]

    def _compare(self, what: str, found_SV: torch.Tensor) -> None:
        same_laws(what, found_SV, self._wanted_SV, self._tolerance)

    def _caught_up(self, row: int, end: int) -> None:
        ran = self._pass(Piece(row=row, start=0, tokens=self._text[:end]))
        self._backend.begin_draft(self._inputs(ran, (end,), (self._text,)))

    def _chunks(self) -> None:
        end = len(self._text) - 1
        for start, stop in ((0, 1), (1, 7), (7, end)):
            ran = self._pass(Piece(row=1, start=start, tokens=self._text[start:stop]))
            drafted_SV = self._draft_after(ran)
        self._compare("a draft after a prompt in chunks", drafted_SV)
        self._runs.release(1)

    def _rejected_rows(self) -> None:
        """Two rows of a verify block are final, then the rest of the text follows."""
        self._caught_up(0, self._head)
        wrong = [(token + 1) % self._target.vocab_size for token in self._text[self._head + 2 :]]
        tokens = (*self._text[self._head : self._head + 2], *wrong)
        ran = self._pass(Piece(row=0, start=self._head, tokens=tokens, is_chunk=False))
        self._backend.begin_draft(self._inputs(ran, (2,), (self._text,)))
        self._runs.roll_back(0, self._head + 2)
        rest = Piece(row=0, start=self._head + 2, tokens=self._text[self._head + 2 : -1], is_chunk=False)
        self._compare("a draft after rejected rows", self._draft_after(self._pass(rest)))
        self._runs.release(0)

    def _thrown_away(self) -> None:
        """Drafted rows are provisional: what is committed later takes their places."""
        ran = self._pass(Piece(row=2, start=0, tokens=self._text[: self._head]))
        self._draft_after(ran)
        rest = Piece(row=2, start=self._head, tokens=self._text[self._head : -1], is_chunk=False)
        self._compare("a draft after one that was thrown away", self._draft_after(self._pass(rest)))
        self._runs.release(2)

    def _batch(self) -> None:
        """Beside a request of another length, and in another order."""
        short = len(self._other) // 2
        pieces = Piece(row=3, start=0, tokens=self._other[:short]), Piece(row=1, start=0, tokens=self._text[:-1])
        ran = self._pass(*pieces)
        drafted_BSV = self._draft(self._inputs(ran, ran.layout.query_lens, (self._other, self._text)))
        self._compare("a draft beside another", drafted_BSV[1])
        self._runs.release(1, 3)

    def _is_the_targets_own(self) -> None:
        drafted = self._wanted_SV.argmax(dim=-1).tolist()
        piece = Piece(row=0, start=0, tokens=(*self._text, *drafted[:-1]))
        own = self._runs.run(piece).logits[0][-NUM_STEPS:].argmax(dim=-1).tolist()
        self._runs.release(0)
        assert drafted == own, f"an exact draft is accepted whole: drafted {drafted}, the target's own are {own}"
