"""The checks of targets and draft models pass right ones and name what is wrong with wrong ones."""

from dataclasses import replace

import pytest
import torch

from specdec.api import DraftInput, RoundLayout, TargetOutput
from specdec.testing import ScriptedTarget, TableDraft, TableTarget, check_draft_backend, check_target, pages_to_check


@pytest.mark.parametrize(
    "target", [TableTarget(), TableTarget(window=16, order=9, rows_per_page=2), ScriptedTarget([[1, 2, 3, 4]] * 13)]
)
def test_check_target_passes_a_right_target(target: TableTarget) -> None:
    check_target(target, num_tokens=30)


def changed(target: TableTarget, change) -> TableTarget:
    """The target with another result: ``change`` is given the layout, the tokens and the result."""
    forward = target.forward

    def wrong(layout: RoundLayout, tokens_T, tables, *, hidden_layers=()) -> TargetOutput:
        return change(layout, tokens_T, forward(layout, tokens_T, tables, hidden_layers=hidden_layers))

    target.forward = wrong
    return target


def knows_its_batch(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV * layout.num_reqs)


def knows_its_chunk(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV * min(layout.query_lens[0], 4))


def knows_its_row(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV * (1 + layout.rows[0]))


def one_row_too_few(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV[1:])


def not_a_number(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV * float("nan"))


def half_precision(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, logits_RV=output.logits_RV.half())


def interleaved(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    if output.hidden_TD is None:
        return output
    return replace(output, hidden_TD=output.hidden_TD.sort(dim=1).values)


def always_hidden(layout: RoundLayout, tokens_T, output: TargetOutput) -> TargetOutput:
    return replace(output, hidden_TD=torch.zeros(len(tokens_T), 2))


class KeepsRejected(TableTarget):
    """Remembers the newest tokens by row instead of reading them through its pages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, list[int]] = {}

    def forward(self, layout, tokens_T, tables, *, hidden_layers=()) -> TargetOutput:
        output = super().forward(layout, tokens_T, tables, hidden_layers=hidden_layers)
        sums = []
        for row, piece in zip(layout.rows, tokens_T.split(layout.query_lens), strict=True):
            for token in piece.tolist():
                self.texts.setdefault(row, []).append(token)
                sums.append(float(sum(self.texts[row][-4:])))
        bias_RV = torch.tensor([sums[row] for row in layout.logit_rows])[:, None] * torch.arange(13) / 100
        return replace(output, logits_RV=output.logits_RV + bias_RV)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (knows_its_batch, "a verify block beside a prompt chunk: probabilities differ"),
        (knows_its_chunk, "a prompt in chunks: probabilities differ"),
        (knows_its_row, "a prompt in chunks: probabilities differ"),
        (one_row_too_few, "logits: one row per logit_rows"),
        (not_a_number, "without NaN"),
        (half_precision, "logits are float32"),
        (interleaved, "side by side"),
        (always_hidden, "hidden states only where layers are named"),
    ],
)
def test_check_target_names_what_is_wrong(change, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_target(changed(TableTarget(), change))


def test_check_target_finds_state_kept_by_row() -> None:
    with pytest.raises(AssertionError, match="after a rejected block|prompt in chunks"):
        check_target(KeepsRejected())


def test_check_target_refuses_texts_beyond_the_context() -> None:
    with pytest.raises(AssertionError, match="texts of 40 tokens, the target takes 20"):
        check_target(TableTarget(max_context=20))


def test_pages_to_check_cover_every_group() -> None:
    pages = pages_to_check(TableTarget().cache_groups)
    assert set(pages) == {"toy.history", "toy.window"} and min(pages.values()) > 10


@pytest.mark.parametrize("history_weight", [0.0, 1.0])
def test_check_draft_backend_passes_a_right_draft(history_weight: float) -> None:
    target = TableTarget(history_weight=history_weight)
    check_draft_backend(target, TableDraft(target), exact=history_weight == 0.0)


class SkipsAdvance(TableDraft):
    """Obeys every second call only, as a drafter that looks the method up and skips it would."""

    num_calls = 0

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        self.num_calls += 1
        if self.num_calls % 2:
            super().advance_draft_forward_metadata(seq_lens_B)


class ForgetsRows(TableDraft):
    """Catches up over the newest committed row alone, and knows nothing of the others."""

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        hidden_TD = inputs.hidden_TD.clone()
        next_tokens_T = inputs.next_tokens_T.clone()
        for start, count in zip(inputs.layout.query_starts, inputs.num_committed_B.tolist(), strict=False):
            next_tokens_T[start : start + max(count - 1, 0)] = 0
        return super().begin_draft(replace(inputs, next_tokens_T=next_tokens_T, hidden_TD=hidden_TD))


class Meddles(TableDraft):
    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        logits_BV = super().begin_draft(inputs)
        inputs.seq_lens_B.add_(1)
        return logits_BV


class AddsToTheNext(TableDraft):
    """Lets the requests of a batch see each other."""

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        return super().begin_draft(inputs).cumsum(dim=0)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (SkipsAdvance, "an exact draft is accepted whole"),
        (ForgetsRows, "a draft after a prompt in chunks|after rejected rows|accepted whole"),
        (Meddles, "leaves its input as it was"),
        (AddsToTheNext, "a draft beside another"),
    ],
)
def test_check_draft_backend_names_what_is_wrong(draft: type[TableDraft], message: str) -> None:
    target = TableTarget(history_weight=0.0)
    with pytest.raises(AssertionError, match=message):
        check_draft_backend(target, draft(target), exact=True)


def test_check_draft_backend_names_groups_that_the_target_lacks() -> None:
    target, other = TableTarget(), TableTarget()
    draft = TableDraft(other)
    draft.cache_groups = (replace(other.window_group, group_id="other.window"),)
    with pytest.raises(AssertionError, match=r"cache groups \['other.window'\] are not the target's"):
        check_draft_backend(target, draft)
