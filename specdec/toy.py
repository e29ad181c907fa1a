"""Toy models that keep token ids in paged caches: wrong pages, slots or bases give wrong text.

``TableTarget`` writes every token through the block tables of the pass and chooses the next one from what it
reads back through them; ``ScriptedTarget`` follows a script; ``TableDraft`` is a draft model with a cache of
its own under the target's page ids. They work on host integers, so a pass takes microseconds on a CPU.
"""

from collections.abc import Sequence

import torch

from specdec.api import DraftInput, GroupTable, RoundLayout, Tables, TargetOutput
from specdec.cache.spec import PAD_SLOT, CacheGroupSpec, Family, Retention
from specdec.errors import MetadataError

HISTORY_GROUP = "toy.history"
WINDOW_GROUP = "toy.window"

# Token ids that no vocabulary has: before position 0, and in a row that was never written.
NO_TOKEN = -1
UNWRITTEN = -7

NUM_CONTEXTS = 4093
MIX = 31
SCRIPTED_LOGIT = 20.0


class PagedTokens:
    """Token ids of one cache group by slot, addressed through the block table of the pass."""

    def __init__(self, spec: CacheGroupSpec) -> None:
        self.group_id = spec.group_id
        self._rows_per_page = spec.rows_per_page
        self._tokens: dict[int, int] = {}
        self._pages: list[list[int]] = []
        self._bases: list[int] = []

    def use(self, table: GroupTable) -> None:
        """Address through ``table`` until the next call."""
        self._pages = table.pages_BC.tolist()
        self._bases = [0] * len(self._pages) if table.base_B is None else table.base_B.tolist()

    def slot(self, req: int, position: int) -> int:
        """Flat row of a position of the request at batch index ``req``; -1 where its page is missing."""
        column = position // self._rows_per_page - self._bases[req]
        if not 0 <= column < len(self._pages[req]) or self._pages[req][column] <= 0:
            return PAD_SLOT
        return self._pages[req][column] * self._rows_per_page + position % self._rows_per_page

    def write(self, req: int, position: int, token: int) -> bool:
        """Store a token; False, with nothing stored, when its page is missing."""
        slot = self.slot(req, position)
        if slot != PAD_SLOT:
            self._tokens[slot] = token
        return slot != PAD_SLOT

    def read(self, req: int, position: int) -> int:
        """The stored token; raises MetadataError when the page of the position is missing."""
        if position < 0:
            return NO_TOKEN
        slot = self.slot(req, position)
        if slot == PAD_SLOT:
            raise MetadataError(f"{self.group_id}: position {position} of request {req} has no page")
        return self._tokens.get(slot, UNWRITTEN)


class ContextLogits:
    """Logits as a fixed random function of a few token ids; ``sharpness`` is their standard deviation."""

    def __init__(self, *, vocab_size: int, sharpness: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._table = sharpness * torch.randn(NUM_CONTEXTS, vocab_size, generator=generator)

    def __call__(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """One row per context; float32 [R, V]."""
        keys = []
        for context in contexts:
            key = 0
            for token in context:
                key = (key * MIX + token - UNWRITTEN) % NUM_CONTEXTS
            keys.append(key)
        return self._table[torch.tensor(keys, dtype=torch.int64)]


class TableTarget:
    """A target whose next token depends on the newest ``order`` tokens and on two old ones.

    vocab_size       V
    max_context      most tokens of a request
    rows_per_page    of both groups
    window           of the sliding group; at least ``order``
    order            newest tokens that matter, read through the sliding group
    history_weight   strength of the tokens at one half and one third of the position, read through the
                     full-history group; 0: a draft that knows the newest tokens is always right
    sharpness        standard deviation of the logits
    """

    def __init__(
        self,
        *,
        vocab_size: int = 13,
        max_context: int = 96,
        rows_per_page: int = 4,
        window: int = 8,
        order: int = 3,
        history_weight: float = 1.0,
        sharpness: float = 2.0,
        seed: int = 0,
    ) -> None:
        assert 1 <= order <= window, "the newest tokens are read through the window"
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.order = order
        self.device = torch.device("cpu")
        self.history_group = CacheGroupSpec(
            group_id=HISTORY_GROUP, retention=Retention.FULL_HISTORY, rows_per_page=rows_per_page
        )
        self.window_group = CacheGroupSpec(
            group_id=WINDOW_GROUP,
            retention=Retention.SLIDING_WINDOW,
            rows_per_page=rows_per_page,
            sliding_window_tokens=window,
            family=Family.STATE,
        )
        self.cache_groups = (self.history_group, self.window_group)
        self.newest = ContextLogits(vocab_size=vocab_size, sharpness=sharpness, seed=seed)
        self.oldest = ContextLogits(vocab_size=vocab_size, sharpness=sharpness * history_weight, seed=seed + 1)
        self._history = PagedTokens(self.history_group)
        self._window = PagedTokens(self.window_group)
        self.layouts: list[RoundLayout] = []

    def forward(
        self,
        layout: RoundLayout,
        tokens_T: torch.Tensor,
        tables: Tables,
        *,
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Write all tokens, then read. The hidden state of a token, per layer, is its id and its position.

        Keeps the layout in ``layouts``. Raises MetadataError where a page is missing.
        """
        self.layouts.append(layout)
        tokens = tokens_T.tolist()
        for cache in (self._history, self._window):
            cache.use(tables[cache.group_id])
            for req, position, token in zip(layout.token_reqs, layout.positions, tokens, strict=True):
                if not cache.write(req, position, token):
                    raise MetadataError(f"{cache.group_id}: no page for position {position} of {layout}")
        wanted = [(layout.token_reqs[t], layout.positions[t]) for t in layout.logit_rows]
        hidden_TD = None
        if hidden_layers:
            state_T2 = torch.tensor([tokens, layout.positions], dtype=torch.float32).T
            hidden_TD = torch.cat([state_T2] * len(hidden_layers), dim=1)
        return TargetOutput(logits_RV=self.logits(wanted), hidden_TD=hidden_TD)

    def logits(self, wanted: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Logits of the token after each (batch index, position), from what the caches hold; float32 [R, V]."""
        newest = [[self._window.read(b, p - step) for step in range(self.order)] for b, p in wanted]
        oldest = [[self._history.read(b, p // 2), self._history.read(b, p // 3)] for b, p in wanted]
        return self.newest(newest) + self.oldest(oldest)

    def first_token(self, req: int) -> int:
        """The token at position 0 of a request of the pass."""
        return self._history.read(req, 0)


class ScriptedTarget(TableTarget):
    """A target that follows a script whatever it reads: a prompt that begins with token ``i`` takes script ``i``.

    scripts  tokens by position: entry ``p`` of script ``i`` is the token at position ``p`` (the prompt's own
             entries are not read); beyond its end the last token repeats
    """

    def __init__(self, scripts: Sequence[Sequence[int]], *, vocab_size: int = 13, max_context: int = 96) -> None:
        super().__init__(vocab_size=vocab_size, max_context=max_context)
        self._scripts = tuple(tuple(script) for script in scripts)

    def logits(self, wanted: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Nearly all mass on the script's token; float32 [R, V]."""
        logits_RV = torch.zeros(len(wanted), self.vocab_size)
        for r, (req, position) in enumerate(wanted):
            script = self._scripts[self.first_token(req)]
            logits_RV[r, script[min(position + 1, len(script) - 1)]] = SCRIPTED_LOGIT
        return logits_RV


class TableDraft:
    """A draft model that knows the newest tokens as the target does, from a cache of its own.

    Row ``p`` of its cache holds the token at ``p + 1``; the token at position 0 is kept in a second cache.
    ``num_dropped`` counts draft writes of requests with a claim to them that found no page.
    """

    def __init__(self, target: TableTarget) -> None:
        self.cache_groups = (target.window_group,)
        self.num_dropped = 0
        self._logits_of = target.newest
        self._order = target.order
        self._followers = PagedTokens(target.window_group)
        self._own = PagedTokens(target.window_group)
        self._seq_lens: list[int] = []
        self._claimed: list[int] = []

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Store every row of the pass; logits after the newest committed row of each request."""
        assert inputs.hidden_TD is not None, "the draft reads the target's last layer"
        layout = inputs.layout
        for cache in (self._own, self._followers):
            cache.use(inputs.tables[cache.group_id])
        rows = zip(
            layout.token_reqs,
            layout.positions,
            inputs.hidden_TD.long().tolist(),
            inputs.next_tokens_T.tolist(),
            strict=True,
        )
        for req, position, (own, own_position), follower in rows:
            assert position == own_position, "hidden states and layout disagree"
            self._own.write(req, position, own)
            self._followers.write(req, position, follower)
        ends = inputs.seq_lens_B.tolist()
        self._claimed = [end + limit - 1 for end, limit in zip(ends, inputs.max_draft_B, strict=True)]
        return self._logits([end - 1 for end in ends])

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The next forward stores position ``seq_lens_B - 1``."""
        self._seq_lens = seq_lens_B.tolist()

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Store one token per request; logits of the token after it."""
        for req, (length, token) in enumerate(zip(self._seq_lens, tokens_B.tolist(), strict=True)):
            stored = self._followers.write(req, length - 1, token)
            # A request that drafts fewer tokens than the others has no claim to the pages of the last steps.
            self.num_dropped += not stored and length - 1 < self._claimed[req]
        return self._logits([length - 1 for length in self._seq_lens])

    def _logits(self, positions: Sequence[int]) -> torch.Tensor:
        """Logits of the token at ``position + 2``: the newest known one is at ``position + 1``."""
        contexts = [
            [self._token_at(req, position + 1 - step) for step in range(self._order)]
            for req, position in enumerate(positions)
        ]
        return self._logits_of(contexts)

    def _token_at(self, req: int, position: int) -> int:
        cache, row = (self._own, position) if position <= 0 else (self._followers, position - 1)
        if row >= 0 and cache.slot(req, row) == PAD_SLOT:
            return UNWRITTEN
        return cache.read(req, row)
