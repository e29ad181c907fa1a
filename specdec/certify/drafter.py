"""A real drafter under the certificate: it runs as in the engine, and all that is random comes from ``Chance``.

A draft model, or a head over the target's states, is stood in for by a table. A drafter that reads hidden states itself
is refused by name.
"""

import io
import pickle
import random
from collections.abc import Hashable, Sequence
from dataclasses import MISSING, fields, is_dataclass

import numpy as np
import torch

from specdec.api import (
    Coupling,
    Draft,
    Drafter,
    DrafterConfig,
    DraftInput,
    DraftSetup,
    DraftTree,
    Proposal,
    RoundLayout,
    SiblingDraws,
    Siblings,
)
from specdec.certify.chain import ROOT
from specdec.certify.chance import Chance
from specdec.certify.drafts import DraftedChain
from specdec.certify.tables import Law, Table, recovered
from specdec.errors import MetadataError, UnsupportedError

CONTEXT = 64
FILLER_TOKEN = 0
STAND_IN = "the draft model's stand-in"


class TableBackend:
    """Stands in for a draft model: its logits are the logarithms of a table's laws after the tokens that it was fed.

    It stands in for heads over the target's states, too: it reads no layer, and has a head for every token of a draft.
    """

    cache_groups = ()
    hidden_layers = ()
    max_draft_tokens = CONTEXT

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: tuple[int, ...] = ()
        self._fed: list[int] = []
        self._next_length = 0
        self._paths: list[list[int]] = []
        self.was_asked = False

    def know(self, tokens: Sequence[int]) -> None:
        """The committed tokens of the round to come."""
        self._known = tuple(tokens)

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Logits after the newest committed token."""
        self._fed, self._paths = list(self._known), []
        self.was_asked = True
        return self._logits()

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """The length must be that of the tokens fed so far and the next one."""
        self._next_length = int(seq_lens_B[0])

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """Logits after one more token, at the position that was announced."""
        self._fed = [*self._fed[: self._next_length], int(tokens_B[0])]
        return self._logits()

    def forward_level(
        self, seq_lens_B: torch.Tensor, tokens_BM: torch.Tensor, parents_BM: torch.Tensor
    ) -> torch.Tensor:
        """Logits [1, M, V] after nodes of a tree, whose parents are numbered as they were fed; -1 for the root."""
        known = list(self._paths)
        for token, parent in zip(tokens_BM[0].tolist(), parents_BM[0].tolist(), strict=True):
            self._paths.append([*(known[parent] if parent >= 0 else self._known), token])
        laws = [[float(x) for x in self._table.law(path)] for path in self._paths[len(known) :]]
        return torch.tensor([laws], dtype=torch.float64).log()

    def _logits(self) -> torch.Tensor:
        law = self._table.law(self._fed)
        return torch.tensor([[float(x) for x in law]], dtype=torch.float64).log()


class ChanceView:
    """A SamplingView at temperature 1 whose draws are choices of ``Chance``."""

    def __init__(self, chance: Chance, coupling: Coupling) -> None:
        self._chance, self._coupling = chance, coupling

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """See ``api.SamplingView.draw``; a draw from its own stream reports its law."""
        if greedy or self._coupling is Coupling.GREEDY:
            return Draft(tokens_B=logits_BV.argmax(dim=-1))
        probs_BV = logits_BV.double().softmax(dim=-1)
        token = self._chance.choose(recovered(probs_BV[0]))
        return Draft(tokens_B=torch.tensor([token]), probs_BV=probs_BV.float())

    def draw_siblings(
        self,
        logits_BV: torch.Tensor,
        positions_B: torch.Tensor,
        *,
        count: int,
        draws: SiblingDraws = SiblingDraws.WITHOUT_REPLACEMENT,
        greedy: bool = False,
    ) -> Siblings:
        """See ``api.SamplingView.draw_siblings``."""
        if greedy or self._coupling is Coupling.GREEDY:
            ordered_BS = logits_BV.sort(dim=-1, descending=True, stable=True).indices[:, :count]
            return Siblings(tokens_BS=ordered_BS, num_B=torch.tensor([ordered_BS.shape[1]]))
        probs_BV = logits_BV.double().softmax(dim=-1)
        left, tokens = list(recovered(probs_BV[0])), []
        while len(tokens) < count and any(left):
            tokens.append(self._chance.choose(left))
            if draws is SiblingDraws.WITHOUT_REPLACEMENT:
                left[tokens[-1]] = 0
        padded = [*tokens, *[0] * (count - len(tokens))]
        return Siblings(tokens_BS=torch.tensor([padded]), num_B=torch.tensor([len(tokens)]), probs_BV=probs_BV.float())


class DrafterSource:
    """A drafter as a ``DraftSource``; its state between rounds is its pickle."""

    def __init__(self, config: DrafterConfig, table: Table, *, most: int, root: tuple[int, ...] = ROOT) -> None:
        needs = config.needs
        if needs.hidden_layers and not needs.draft_backend:
            raise UnsupportedError(
                f"{type(config).__name__} reads hidden states of the target, and a table target has none: "
                "judge its rule with a drafter that has a draft backend, such as drafter=nextn"
            )
        self._most, self._root, self._vocab_size = most, root, table.vocab_size
        self._backend = TableBackend(table)
        self._num_hidden = len(needs.hidden_layers)
        self._with_history = needs.history
        self.name = named(config)
        setup = DraftSetup(
            device=torch.device("cpu"),
            vocab_size=table.vocab_size,
            max_batch=1,
            max_context=CONTEXT,
            # Offered to all, as the loader of a model does; a drafter without one leaves it alone.
            draft_backend=self._backend,
        )
        # The first round follows a pass over the prompt, all of the root but its newest token.
        self.start: Hashable = (self._dump(config.build(setup)), 0, len(root) - 1)

    @property
    def has_stand_in(self) -> bool:
        """Whether a table has stood in for a draft model so far."""
        return self._backend.was_asked

    def draft(self, chance: Chance, known: tuple[int, ...], limit: int, state: Hashable) -> DraftedChain:
        """See ``DraftSource``."""
        pickled, pass_start, pass_length = state
        drafter = self._load(pickled)
        self._backend.know(known)
        limit = min(limit, self._most, drafter.num_draft_tokens)
        inputs = self._inputs(known, pass_start, pass_length, limit, ChanceView(chance, Coupling.INDEPENDENT))
        before = _global_generators()
        proposal = drafter.propose(inputs)
        if _global_generators() != before:
            raise UnsupportedError(
                f"{self.name} draws from a global random generator, which cannot be enumerated: "
                "draw with inputs.sampling.draw"
            )
        tokens, laws = self._read(proposal, limit)
        parents = self._read_parents(proposal, len(tokens))
        after = self._dump(drafter)
        end = len(known) - 1

        def state_after(num_accepted: int) -> Hashable:
            # After a tree the drafter is shown the accepted path alone.
            return after, end, 1 + (len(tokens) if parents is None else num_accepted)

        return DraftedChain(
            tokens=tokens,
            laws=laws,
            windows=(),
            after=state_after,
            parents=parents,
            draws=None if proposal is None else proposal.sibling_draws,
        )

    def _inputs(self, known: tuple[int, ...], start: int, length: int, limit: int, sampling: ChanceView) -> DraftInput:
        end = len(known) - 1
        is_prompt = start == 0
        followers = list(known[start + 1 : start + 1 + length])
        return DraftInput(
            layout=RoundLayout(
                rows=(0,), start_positions=(start,), query_lens=(length,), num_prefill_reqs=int(is_prompt)
            ),
            next_tokens_T=torch.tensor(followers + [FILLER_TOKEN] * (length - len(followers))),
            hidden_TD=torch.zeros(length, self._num_hidden) if self._num_hidden else None,
            num_committed_B=torch.tensor([end - start]),
            last_tokens_B=torch.tensor([known[-1]]),
            seq_lens_B=torch.tensor([end]),
            wanted_B=(limit > 0,),
            max_draft_B=(limit,),
            limits_B=torch.tensor([limit]),
            sampling=sampling,
            histories=(known,) if self._with_history else (),
            tables={},
        )

    def _read(self, proposal: Proposal | None, limit: int) -> tuple[tuple[int, ...], tuple[Law, ...] | None]:
        if proposal is None or limit == 0:
            return (), None
        count = int(proposal.num_drafted_B[0])
        tokens = tuple(proposal.tokens_BK[0, :count].tolist())
        if not (len(tokens) == count <= limit and all(0 <= token < self._vocab_size for token in tokens)):
            raise MetadataError(f"{self.name} proposed {list(tokens)}, count {count}, at most {limit} may be")
        if proposal.probs_BKV is None:
            return tokens, None
        return tokens, tuple(recovered(row_V) for row_V in proposal.probs_BKV[0, :count])

    def _read_parents(self, proposal: Proposal | None, count: int) -> tuple[int, ...] | None:
        if proposal is None or proposal.parents_BK is None or count == 0:
            return None
        if proposal.probs_BKV is not None and proposal.sibling_draws is None:
            raise MetadataError(f"{self.name} reports laws of a tree and not how siblings were drawn (sibling_draws)")
        return DraftTree(tuple(proposal.parents_BK[0, :count].tolist())).parents

    def _dump(self, drafter: Drafter) -> bytes:
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self._backend).dump(drafter)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise UnsupportedError(f"the state of {self.name} cannot be copied between outcomes: {error}") from None
        return buffer.getvalue()

    def _load(self, pickled: bytes) -> Drafter:
        return _Unpickler(io.BytesIO(pickled), self._backend).load()


def named(config: DrafterConfig) -> str:
    """The class of a configuration, with the plain settings that are not at their defaults."""
    changed = []
    for spec in fields(config) if is_dataclass(config) else ():
        value = getattr(config, spec.name)
        if spec.default is not MISSING and isinstance(value, str | bool | int | float) and value != spec.default:
            changed.append(f"{spec.name}={value}")
    return type(config).__name__ + (f"({', '.join(changed)})" if changed else "")


def _global_generators() -> tuple[object, ...]:
    """State of the generators that a drafter could draw from behind the certificate's back."""
    numpy_state = np.random.get_state(legacy=True)
    return random.getstate(), numpy_state[1].tobytes(), numpy_state[2], torch.get_rng_state().numpy().tobytes()


class _Pickler(pickle.Pickler):
    """Leaves the stand-in out: it keeps nothing between rounds."""

    def __init__(self, buffer: io.BytesIO, backend: TableBackend) -> None:
        super().__init__(buffer)
        self._backend = backend

    def persistent_id(self, thing: object) -> str | None:
        return STAND_IN if thing is self._backend else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, backend: TableBackend) -> None:
        super().__init__(buffer)
        self._backend = backend

    def persistent_load(self, name: str) -> TableBackend:
        assert name == STAND_IN
        return self._backend
