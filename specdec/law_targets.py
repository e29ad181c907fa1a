"""Targets and drafts whose laws are tables of fractions, as models over paged caches; for exact acceptance figures.

A ``specdec.certify.tables.Table`` of a single row is i.i.d., one of a row for each token a bigram table. A target of
this file reads the newest token back through its pages, so that wrong pages give wrong laws.
"""

from collections.abc import Sequence
from fractions import Fraction

import torch

from specdec.api import RoundLayout
from specdec.cache.tables import from_ragged
from specdec.certify.tables import Law, Table, recovered
from specdec.toy import CPU, Array, TableDraft, TableTarget

FIRST_PAGE = 1


class TableLogits:
    """Logits whose softmax is the law of a table after the newest token; -inf where a token cannot come."""

    def __init__(self, table: Table, *, device: torch.device) -> None:
        weights = [[float(weight) for weight in row] for row in table.rows]
        self._logits_XV = torch.tensor(weights, dtype=torch.float64, device=device).log().float()

    def __call__(self, contexts_XR: Array) -> torch.Tensor:
        """Of the tokens of each column, newest first, int64 [X, R]; float32 [R, V]."""
        newest_R = torch.as_tensor(contexts_XR[0])
        # A token that is not known, of a padding row, may give any law.
        return self._logits_XV[newest_R % len(self._logits_XV)]


class LawTarget(TableTarget):
    """A target that follows a table of laws by newest token.

    table        laws; their number of tokens is the vocabulary
    max_context  most tokens of a request
    """

    def __init__(self, table: Table, *, max_context: int = 96, device: torch.device = CPU) -> None:
        vocab_size = table.vocab_size
        super().__init__(vocab_size=vocab_size, max_context=max_context, order=1, history_weight=0.0, device=device)
        self.table = table
        self.newest = TableLogits(table, device=device)


class IidTarget(LawTarget):
    """A target that draws every token from one law, such as ``(Fraction(1, 3), Fraction(2, 3))``."""

    def __init__(self, law: Law, *, max_context: int = 96, device: torch.device = CPU) -> None:
        super().__init__(Table((tuple(law),)), max_context=max_context, device=device)


class BigramTarget(LawTarget):
    """A target whose next token depends on the newest one: row ``i`` of ``laws`` follows token ``i``."""

    def __init__(self, laws: Sequence[Law], *, max_context: int = 96, device: torch.device = CPU) -> None:
        table = Table(tuple(tuple(law) for law in laws))
        assert len(table.rows) == table.vocab_size, "one law for every token"
        super().__init__(table, max_context=max_context, device=device)


class LawDraft(TableDraft):
    """A draft model that follows a table of its own, over a cache of its own under the target's page ids."""

    def __init__(self, target: LawTarget, table: Table) -> None:
        assert table.vocab_size == target.vocab_size, "one vocabulary"
        super().__init__(target, TableLogits(table, device=target.device))
        self.table = table


def laws_of(target: LawTarget) -> Table:
    """The table as the target's own passes give it, as fractions again: what its caches and logits make of it."""
    rows = []
    for token in range(target.vocab_size):
        layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(1,), num_prefill_reqs=1, logit_rows=(0,))
        pages = {spec.group_id: [[FIRST_PAGE]] for spec in target.cache_groups}
        bases = {spec.group_id: [0] for spec in target.cache_groups if spec.is_sliding}
        tables = from_ragged(pages, num_reqs=1, bases=bases, device=target.device)
        output = target.forward(layout, torch.tensor([token], device=target.device), tables)
        rows.append(recovered(output.logits_RV[0].double().softmax(dim=-1)))
    assert all(isinstance(weight, Fraction) for row in rows for weight in row), "laws with small denominators"
    return Table(tuple(rows))
