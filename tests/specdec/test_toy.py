"""The toy models notice what they are for: wrong pages, slots, bases, and rows that are out of step."""

import pytest
import torch

from specdec.api import DraftInput, GroupTable, RoundLayout
from specdec.cache.tables import from_ragged
from specdec.errors import MetadataError
from specdec.testing import PlainDrafter, ScriptedTarget, TableDraft, TableTarget

CPU = torch.device("cpu")
PROMPT = [5, 3, 8, 1, 9, 2, 7, 4, 6, 5]


def tables_of(pages: dict[str, list[list[int]]], base: int = 0, num_reqs: int = 1) -> dict[str, GroupTable]:
    return from_ragged(pages, num_reqs=num_reqs, bases={"toy.window": [base] * num_reqs}, device=CPU)


def forward(target: TableTarget, tokens, start: int, tables) -> torch.Tensor:
    length = len(tokens)
    layout = RoundLayout(rows=(0,), start_positions=(start,), query_lens=(length,), logit_rows=tuple(range(length)))
    return target.forward(layout, torch.tensor(tokens), tables).logits_RV


PAGES = {"toy.history": [[3, 1, 5]], "toy.window": [[2, 7, 4]]}


def test_table_target_gives_one_answer_for_any_pages_and_any_split() -> None:
    whole = forward(TableTarget(), PROMPT, 0, tables_of(PAGES))
    other = {"toy.history": [[1, 2, 3]], "toy.window": [[9, 8, 1]]}
    assert forward(TableTarget(), PROMPT, 0, tables_of(other)).equal(whole)
    target = TableTarget()
    parts = [forward(target, PROMPT[a:b], a, tables_of(PAGES)) for a, b in ((0, 4), (4, 5), (5, 10))]
    assert torch.cat(parts).equal(whole)


def test_table_target_reads_a_compact_window() -> None:
    whole = forward(TableTarget(), PROMPT, 0, tables_of(PAGES))
    target = TableTarget()
    forward(target, PROMPT[:9], 0, tables_of(PAGES))
    compact = {"toy.history": PAGES["toy.history"], "toy.window": [[7, 4]]}
    assert forward(target, PROMPT[9:], 9, tables_of(compact, base=1)).equal(whole[9:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"toy.history": [[3, 1, 5]], "toy.window": [[2, 4, 7]]},
        {"toy.history": [[1, 3, 5]], "toy.window": [[2, 7, 4]]},
    ],
)
def test_table_target_gives_other_text_through_wrong_pages(wrong) -> None:
    whole = forward(TableTarget(), PROMPT, 0, tables_of(PAGES))
    target = TableTarget()
    forward(target, PROMPT[:9], 0, tables_of(PAGES))
    assert not forward(target, PROMPT[9:], 9, tables_of(wrong)).equal(whole[9:])


def test_table_target_refuses_a_token_without_a_page() -> None:
    short = {"toy.history": [[3, 1]], "toy.window": [[2, 7]]}
    with pytest.raises(MetadataError, match=r"toy.history: no page for position 8"):
        forward(TableTarget(), PROMPT, 0, tables_of(short))


def test_table_target_refuses_a_window_that_was_released_early() -> None:
    target = TableTarget()
    forward(target, PROMPT[:9], 0, tables_of(PAGES))
    released = {"toy.history": PAGES["toy.history"], "toy.window": [[4]]}
    with pytest.raises(MetadataError, match=r"toy.window: position 7 of request 0 has no page"):
        forward(target, PROMPT[9:], 9, tables_of(released, base=2))


def test_scripted_target_follows_the_script_of_the_first_token() -> None:
    target = ScriptedTarget([(0, 1, 2), (0, 7, 8)])
    logits_RV = forward(target, [1, 4, 4, 4], 0, tables_of(PAGES))
    assert logits_RV.argmax(dim=1).tolist() == [7, 8, 8, 8]


def draft_input(target: TableTarget, tokens: list[int], tables, *, shift: int = 0) -> DraftInput:
    """The prompt ``tokens`` but for the last, which is the newest token."""
    length = len(tokens) - 1
    layout = RoundLayout(rows=(0,), start_positions=(0,), query_lens=(length,), num_prefill_reqs=1)
    output = target.forward(layout, torch.tensor(tokens[:-1]), tables, hidden_layers=(-1,))
    return DraftInput(
        layout=layout,
        next_tokens_T=torch.tensor(tokens[1:]).roll(shift),
        hidden_TD=output.hidden_TD,
        num_committed_B=torch.tensor([length]),
        last_tokens_B=torch.tensor(tokens[-1:]),
        seq_lens_B=torch.tensor([length]),
        wanted_B=(True,),
        max_draft_B=(3,),
        limits_B=torch.tensor([3]),
        sampling=PlainDrafter(),
        histories=(),
        tables=tables,
    )


def test_table_draft_agrees_with_a_target_without_long_memory() -> None:
    target = TableTarget(history_weight=0.0)
    tables = tables_of(PAGES)
    expected = forward(target, PROMPT, 0, tables)
    draft = TableDraft(target)
    assert draft.begin_draft(draft_input(target, PROMPT[:8], tables)).equal(expected[7:8])
    draft.advance_draft_forward_metadata(torch.tensor([8]))
    assert draft.forward(torch.tensor(PROMPT[8:9])).equal(expected[8:9])
    assert draft.num_dropped == 0


def test_table_draft_disagrees_when_the_next_tokens_are_shifted() -> None:
    target = TableTarget(history_weight=0.0)
    tables = tables_of(PAGES)
    expected = forward(target, PROMPT, 0, tables)
    shifted = draft_input(target, PROMPT[:8], tables, shift=1)
    assert not TableDraft(target).begin_draft(shifted).equal(expected[7:8])


def test_table_draft_counts_writes_without_a_page() -> None:
    target = TableTarget()
    draft = TableDraft(target)
    short = {"toy.history": [[3, 1]], "toy.window": [[2, 7]]}
    draft.begin_draft(draft_input(target, PROMPT[:9], tables_of(short)))
    draft.advance_draft_forward_metadata(torch.tensor([9]))
    draft.forward(torch.tensor([1]))
    assert draft.num_dropped == 1
