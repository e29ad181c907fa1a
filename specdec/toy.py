"""Toy models that keep token ids in paged caches: wrong pages, slots or bases give wrong text.

``TableTarget`` writes every token through the block tables of the pass and chooses the next one from what it
reads back through them; ``ScriptedTarget`` follows a script; ``TableDraft`` is a draft model with a cache of
its own under the target's page ids. A packed pass is made of device operations only, so that it can be recorded; an
eager one runs the same operations and checks besides, on the host, that no page is missing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specdec.api import DraftInput, GroupTable, PackedPass, RoundLayout, Tables, TargetOutput
from specdec.cache.spec import DUMMY_PAGE, PAD_SLOT, CacheGroupSpec, Family, Retention
from specdec.errors import CapacityError, MetadataError
from specdec.rules.numbers import Array
from specdec.toy_trees import moves_of, place_finder

HISTORY_GROUP = "toy.history"
WINDOW_GROUP = "toy.window"

# Token ids that no vocabulary has: before position 0, in a row that was never written, and of a row without a page.
NO_TOKEN = -1
UNWRITTEN = -7
NO_PAGE = -8

NUM_CONTEXTS = 4093
MIX = 31
SCRIPTED_LOGIT = 20.0
NUM_ROWS = 1 << 15
CPU = torch.device("cpu")


def plain(tensor: torch.Tensor) -> Array:
    """The same memory as a NumPy array where that is possible: small operations cost a tenth of a tensor's."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def where(condition: Array, yes: Array | int, no: Array | int) -> Array:
    """``yes`` where the condition holds, ``no`` elsewhere; of either kind of array."""
    return torch.where(condition, yes, no) if isinstance(condition, torch.Tensor) else np.where(condition, yes, no)


class PagedTokens:
    """Token ids of one cache group by slot, addressed through the block table of the pass.

    num_rows  slots that the cache has; a table may name no page beyond them

    Works on tensors and, for eager passes on a CPU, on arrays; both are the same memory.
    """

    def __init__(self, spec: CacheGroupSpec, *, num_rows: int, device: torch.device) -> None:
        self.group_id = spec.group_id
        self._rows_per_page = spec.rows_per_page
        self._num_rows = num_rows
        # One more row, at index -1, takes what has no page.
        self._tokens_S = torch.full((num_rows + 1,), UNWRITTEN, dtype=torch.int64, device=device)
        self._array_S = plain(self._tokens_S)
        self._pages_BC: Array = torch.zeros(0, 1, dtype=torch.int32, device=device)
        self._base_B: Array | None = None

    def use(self, table: GroupTable, *, eager: bool = False) -> None:
        """Address through ``table`` until the next call; ``eager``: the positions to come are arrays."""
        view = plain if eager else torch.Tensor.detach
        self._pages_BC = view(table.pages_BC)
        self._base_B = None if table.base_B is None else view(table.base_B)

    def slots(self, reqs_X: Array, positions_X: Array) -> Array:
        """Flat row [...] of positions of the requests at batch indices ``reqs_X``; -1 where there is no page."""
        column_X = positions_X // self._rows_per_page
        if self._base_B is not None:
            column_X = column_X - self._base_B[reqs_X]
        inside_X = column_X.clip(0, self._pages_BC.shape[1] - 1)
        page_X = self._pages_BC[reqs_X, inside_X]
        exists_X = (column_X == inside_X) & (page_X > DUMMY_PAGE)
        return where(exists_X, page_X * self._rows_per_page + positions_X % self._rows_per_page, PAD_SLOT)

    def write(self, reqs_X: Array, positions_X: Array, tokens_X: Array) -> Array:
        """Store tokens; their slots, -1 with nothing stored where the page is missing."""
        slots_X = self.slots(reqs_X, positions_X)
        self._rows(slots_X)[slots_X] = tokens_X
        return slots_X

    def read(self, reqs_X: Array, positions_X: Array) -> Array:
        """The stored tokens int64 [...]; NO_TOKEN before position 0 and NO_PAGE where the page is missing."""
        slots_X = self.slots(reqs_X, positions_X)
        tokens_X = where(slots_X == PAD_SLOT, NO_PAGE, self._rows(slots_X)[slots_X])
        return where(positions_X < 0, NO_TOKEN, tokens_X)

    def check_slots(self, slots_X: Array) -> None:
        """Raise CapacityError on the host for a page that the cache does not have."""
        if len(slots_X) and int(slots_X.max()) >= self._num_rows:
            raise CapacityError(f"{self.group_id}: the toy has {self._num_rows} rows, got slot {int(slots_X.max())}")

    def _rows(self, like: Array) -> Array:
        return self._tokens_S if isinstance(like, torch.Tensor) else self._array_S


class ContextLogits:
    """Logits as a fixed random function of a few token ids; ``sharpness`` is their standard deviation."""

    def __init__(self, *, vocab_size: int, sharpness: float, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._table = (sharpness * torch.randn(NUM_CONTEXTS, vocab_size, generator=generator)).to(device)

    def __call__(self, contexts_XR: Array) -> torch.Tensor:
        """Of the tokens of each column, int64 [X, R]; float32 [R, V]."""
        key_R = contexts_XR[0] * 0
        for tokens_R in contexts_XR:
            key_R = (key_R * MIX + (tokens_R - UNWRITTEN)) % NUM_CONTEXTS
        return self._table[torch.as_tensor(key_R)]


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
    num_rows         rows of each cache
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
        num_rows: int = NUM_ROWS,
        device: torch.device = CPU,
    ) -> None:
        assert 1 <= order <= window, "the newest tokens are read through the window"
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.order = order
        self.num_rows = num_rows
        self.device = device
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
        self.newest: Callable[[Array], torch.Tensor] = ContextLogits(
            vocab_size=vocab_size, sharpness=sharpness, seed=seed, device=device
        )
        self.oldest = ContextLogits(
            vocab_size=vocab_size, sharpness=sharpness * history_weight, seed=seed + 1, device=device
        )
        self._history = PagedTokens(self.history_group, num_rows=num_rows, device=device)
        self._window = PagedTokens(self.window_group, num_rows=num_rows, device=device)
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
        packed = packed_pass(layout, tokens_T, tables)
        reqs_T, positions_T = plain(packed.reqs_T), plain(packed.positions_T)
        places_T = positions_T
        if layout.has_trees:
            places_T = plain(torch.tensor(layout.places, device=self.device))
        for cache in (self._history, self._window):
            cache.use(tables[cache.group_id], eager=True)
            slots_T = cache.write(reqs_T, places_T, plain(tokens_T))
            stored = slots_T.tolist()
            if PAD_SLOT in stored:
                position = layout.places[stored.index(PAD_SLOT)]
                raise MetadataError(f"{cache.group_id}: no page for position {position} of {layout}")
            cache.check_slots(slots_T)
        rows = list(layout.logit_rows)
        reqs_R, positions_R = reqs_T[rows], positions_T[rows]
        context = self._context(reqs_R, positions_R, place_finder(layout))
        self._check_context(reqs_R, positions_R, context)
        return TargetOutput(
            logits_RV=self.logits(reqs_R, positions_R, context), hidden_TD=hidden_states(packed, hidden_layers)
        )

    def forward_packed(self, packed: PackedPass, *, hidden_layers: tuple[int, ...] = ()) -> TargetOutput:
        """``forward`` of a packed pass: device work only, and logits of every token."""
        reqs_T, positions_T = packed.reqs_T, packed.positions_T.long()
        for cache in (self._history, self._window):
            cache.use(packed.tables[cache.group_id])
            cache.write(reqs_T, positions_T, packed.tokens_T)
        logits_TV = self.logits(reqs_T, positions_T, self._context(reqs_T, positions_T))
        return TargetOutput(logits_RV=logits_TV, hidden_TD=hidden_states(packed, hidden_layers))

    def keep_paths(self, layout: RoundLayout, paths: Sequence[Sequence[int]], tables: Tables) -> None:
        """See ``api.TreeTarget``."""
        moves = moves_of(layout, paths, device=self.device)
        for cache in (self._history, self._window):
            cache.use(tables[cache.group_id], eager=True)
            cache.write(plain(moves[0]), plain(moves[2]), cache.read(plain(moves[0]), plain(moves[1])))

    def logits(self, reqs_R: Array, positions_R: Array, context: tuple[Array, Array]) -> torch.Tensor:
        """Logits of the token after each (batch index, position), from what the caches hold; float32 [R, V]."""
        newest_XR, oldest_XR = context
        return self.newest(newest_XR) + self.oldest(oldest_XR)

    def first_tokens(self, reqs_R: Array) -> Array:
        """The tokens at position 0 of requests of the pass, int64 [R]."""
        return self._history.read(reqs_R, reqs_R * 0)

    def _context(
        self, reqs_R: Array, positions_R: Array, place: Callable[[Array], Array] | None = None
    ) -> tuple[Array, Array]:
        """Tokens that decide the next one: [order, R] of the window and [2, R] of the history.

        place  where positions [..., R] lie for these rows; None: in their own places
        """
        newest_XR, oldest_XR = self._newest(positions_R), _oldest(positions_R)
        if place is not None:
            newest_XR, oldest_XR = place(newest_XR), place(oldest_XR)
        return self._window.read(reqs_R, newest_XR), self._history.read(reqs_R, oldest_XR)

    def _newest(self, positions_R: Array) -> Array:
        return positions_R - steps(self.order, like=positions_R)

    def _check_context(self, reqs_R: Array, positions_R: Array, context: tuple[Array, Array]) -> None:
        wanted = (self._newest(positions_R), _oldest(positions_R))
        for cache, read_XR, tokens_XR in zip((self._window, self._history), wanted, context, strict=True):
            for step, lacks in enumerate((tokens_XR == NO_PAGE).tolist()):
                if True in lacks:
                    absent = lacks.index(True)
                    where_ = f"position {int(read_XR[step, absent])} of request {int(reqs_R[absent])}"
                    raise MetadataError(f"{cache.group_id}: {where_} has no page")


def steps(count: int, *, like: Array) -> Array:
    """0, 1, .. as a column [count, 1] of the kind of ``like``."""
    if isinstance(like, torch.Tensor):
        return torch.arange(count, device=like.device).unsqueeze(1)
    return np.arange(count)[:, None]


def _oldest(positions_R: Array) -> Array:
    halves_R, thirds_R = positions_R // 2, positions_R // 3
    if isinstance(positions_R, torch.Tensor):
        return torch.stack([halves_R, thirds_R])
    return np.stack([halves_R, thirds_R])


class ScriptedTarget(TableTarget):
    """A target that follows a script whatever it reads: a prompt that begins with token ``i`` takes script ``i``.

    scripts  tokens by position: entry ``p`` of script ``i`` is the token at position ``p`` (the prompt's own
             entries are not read); beyond its end the last token repeats
    """

    def __init__(self, scripts: Sequence[Sequence[int]], *, vocab_size: int = 13, max_context: int = 96) -> None:
        super().__init__(vocab_size=vocab_size, max_context=max_context)
        longest = max(map(len, scripts))
        self._scripts_XL = torch.tensor([[*script, *script[-1:] * (longest - len(script))] for script in scripts])

    def logits(self, reqs_R: Array, positions_R: Array, context: tuple[Array, Array]) -> torch.Tensor:
        """Nearly all mass on the script's token; float32 [R, V]."""
        num_scripts, longest = self._scripts_XL.shape
        scripts_R = self.first_tokens(reqs_R).clip(0, num_scripts - 1)
        tokens_R = self._scripts_XL[torch.as_tensor(scripts_R), torch.as_tensor(positions_R + 1).clamp(max=longest - 1)]
        logits_RV = torch.zeros(len(tokens_R), self.vocab_size)
        return logits_RV.scatter_(1, tokens_R.unsqueeze(1), SCRIPTED_LOGIT)


class TableDraft:
    """A draft model that knows the newest tokens as the target does, from a cache of its own.

    Row ``p`` of its cache holds the token at ``p + 1``; the token at position 0 is kept in a second cache.

    logits  of the newest tokens, int64 [order, R] -> [R, V]; without any the target's own
    """

    def __init__(self, target: TableTarget, logits: Callable[[Array], torch.Tensor] | None = None) -> None:
        self.cache_groups = (target.window_group,)
        device = target.device
        self._logits_of = target.newest if logits is None else logits
        self._order = target.order
        self._followers = PagedTokens(target.window_group, num_rows=target.num_rows, device=device)
        self._own = PagedTokens(target.window_group, num_rows=target.num_rows, device=device)
        self._num_dropped = torch.zeros((), dtype=torch.int64, device=device)
        self._view: Callable[[torch.Tensor], Array] = plain
        self._positions_B: Array = torch.zeros(0, dtype=torch.int64, device=device)
        self._claimed_B: Array = self._positions_B

    @property
    def num_dropped(self) -> int:
        """Draft writes of requests with a claim to them that found no page."""
        return int(self._num_dropped)

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Store every row of the pass; logits after the newest committed row of each request."""
        assert inputs.hidden_TD is not None, "the draft reads the target's last layer"
        packed = inputs.packed
        if packed is None:
            packed = packed_pass(inputs.layout, inputs.next_tokens_T, inputs.tables)
            own_positions = inputs.hidden_TD[:, 1].tolist()
            assert tuple(own_positions) == inputs.layout.positions, "hidden states and layout disagree"
        self._store(packed, inputs.hidden_TD, inputs.next_tokens_T, eager=inputs.packed is None)
        ends_B = self._view(inputs.seq_lens_B)
        self._claimed_B = ends_B + self._view(inputs.limits_B) - 1
        return self._logits(ends_B - 1)

    def begin_packed_draft(
        self,
        packed: PackedPass,
        *,
        hidden_TD: torch.Tensor,
        next_tokens_T: torch.Tensor,
        num_committed_B: torch.Tensor,
    ) -> torch.Tensor:
        """See ``api.GraphDraftBackend``; without limits, so any write may be dropped."""
        width = len(packed.tokens_T) // len(num_committed_B)
        rows_B = torch.arange(len(num_committed_B), device=num_committed_B.device) * width
        rows_B = rows_B + num_committed_B.clamp(1, width) - 1
        self._claimed_B = torch.zeros_like(num_committed_B)
        self._store(packed, hidden_TD, next_tokens_T, eager=False)
        return self._logits(packed.positions_T.long()[rows_B])

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The next forward stores position ``seq_lens_B - 1``."""
        self._positions_B = self._view(seq_lens_B) - 1

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Store one token per request; logits of the token after it."""
        positions_B = self._positions_B
        slots_B = self._followers.write(_each(positions_B), positions_B, self._view(tokens_B))
        # A request that drafts fewer tokens than the others has no claim to the pages of the last steps.
        self._num_dropped += ((slots_B == PAD_SLOT) & (positions_B < self._claimed_B)).sum()
        return self._logits(positions_B)

    def _store(self, packed: PackedPass, hidden_TD: torch.Tensor, next_tokens_T: torch.Tensor, *, eager: bool) -> None:
        self._view = view = plain if eager else torch.Tensor.long
        for cache in (self._own, self._followers):
            cache.use(packed.tables[cache.group_id], eager=eager)
        reqs_T, positions_T = view(packed.reqs_T), view(packed.positions_T)
        self._own.write(reqs_T, positions_T, view(hidden_TD[:, 0].long()))
        self._followers.write(reqs_T, positions_T, view(next_tokens_T))

    def _logits(self, positions_B: Array) -> torch.Tensor:
        """Logits of the token at ``position + 2``: the newest known one is at ``position + 1``."""
        wanted_XB = positions_B + 1 - steps(self._order, like=positions_B)
        reqs_B = _each(positions_B)
        followers_XB = self._followers.read(reqs_B, wanted_XB - 1)
        return self._logits_of(where(wanted_XB <= 0, self._own.read(reqs_B, wanted_XB), followers_XB))


def packed_pass(layout: RoundLayout, tokens_T: torch.Tensor, tables: Tables) -> PackedPass:
    """The pass of ``layout`` as tensors on the device of ``tokens_T``."""
    reqs_T = torch.tensor(layout.token_reqs, dtype=torch.int64, device=tokens_T.device)
    positions_T = torch.tensor(layout.positions, dtype=torch.int64, device=tokens_T.device)
    return PackedPass(tokens_T=tokens_T, positions_T=positions_T, reqs_T=reqs_T, tables=tables)


def hidden_states(packed: PackedPass, hidden_layers: tuple[int, ...]) -> torch.Tensor | None:
    """Per layer the id and the position of every token, float32 [T, 2 * layers]; None without layers."""
    if not hidden_layers:
        return None
    state_T2 = torch.stack([packed.tokens_T, packed.positions_T], dim=1).float()
    return torch.cat([state_T2] * len(hidden_layers), dim=1)


def _each(values_B: Array) -> Array:
    if isinstance(values_B, torch.Tensor):
        return torch.arange(len(values_B), device=values_B.device)
    return np.arange(len(values_B))
