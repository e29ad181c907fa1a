"""Rows 1 to 5, 10 and 11 of the contract: pass modes, and how a draft model is driven."""

import inspect

import pytest
import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.target import DeepseekV4Target
from backends.nextn.backend import NextNBackend
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from specdec.api import Draft, DraftInput, DraftSetup
from specdec.cache.spec import CacheGroupSpec
from specdec.layout import ForwardMode, RoundLayout

CPU = torch.device("cpu")


class RecordingBackend:
    """A draft backend that writes down how it is driven."""

    cache_groups: tuple[CacheGroupSpec, ...] = ()

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        self.calls.append(("begin", inputs.seq_lens_B.tolist()))
        return torch.eye(8)[: len(inputs.seq_lens_B)]

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        self.calls.append(("advance", seq_lens_B.tolist()))

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        self.calls.append(("forward", tokens_B.tolist()))
        return torch.eye(8)[: len(tokens_B)]


class Argmax:
    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        return Draft(tokens_B=logits_BV.argmax(dim=1))


def draft_input(starts, query_lens, committed, *, num_prefill_reqs=0) -> DraftInput:
    layout = RoundLayout(
        rows=tuple(range(len(starts))),
        start_positions=tuple(starts),
        query_lens=tuple(query_lens),
        num_prefill_reqs=num_prefill_reqs,
    )
    committed_B = torch.tensor(committed)
    return DraftInput(
        layout=layout,
        next_tokens_T=torch.zeros(layout.num_tokens, dtype=torch.int64),
        hidden_TD=None,
        num_committed_B=committed_B,
        last_tokens_B=torch.zeros(len(starts), dtype=torch.int64),
        seq_lens_B=torch.tensor(starts) + committed_B,
        wanted_B=(True,) * len(starts),
        max_draft_B=(8,) * len(starts),
        limits_B=torch.full((len(starts),), 8),
        sampling=Argmax(),
        histories=(),
        tables={},
    )


def drive(num_draft_tokens: int, inputs: DraftInput) -> list[tuple[str, list[int]]]:
    backend = RecordingBackend()
    setup = DraftSetup(device=CPU, vocab_size=8, max_batch=4, max_context=64, draft_backend=backend)
    NextnConfig(num_draft_tokens=num_draft_tokens, proposals="greedy").build(setup).propose(inputs)
    return backend.calls


def test_row_01_forward_mode_predicates():
    expected = {(0, 0): "IDLE", (0, 2): "DECODE", (2, 2): "EXTEND", (1, 2): "MIXED"}
    for (extends, reqs), name in expected.items():
        mode = ForwardMode.of(num_prefill_reqs=extends, num_reqs=reqs)
        assert mode is ForwardMode[name]
        assert mode.is_decode_or_idle == (name in ("DECODE", "IDLE"))
        assert mode.is_extend_or_mixed == (name in ("EXTEND", "MIXED"))


def test_row_02_a_draft_step_takes_what_its_protocol_names():
    """The seed looks for a step index in signatures; here every draft backend has the same typed methods."""
    for method, names in (
        (NextNBackend.forward, ["self", "tokens_B"]),
        (NextNBackend.advance_draft_forward_metadata, ["self", "seq_lens_B"]),
        (NextNBackend.begin_draft, ["self", "inputs"]),
    ):
        assert list(inspect.signature(method).parameters) == names


def test_row_03_an_argument_beyond_the_protocol_is_refused():
    with pytest.raises(TypeError, match="num_token"):
        ForwardInputs(mode=ForwardMode.DECODE, rows=(0,), seq_lens=(3,), tables={}, num_token=4)
    with pytest.raises(TypeError, match="spec_step_idx"):
        RecordingBackend().forward(torch.zeros(1), spec_step_idx=2)


@pytest.mark.parametrize("owner", [NextNBackend, DeepseekV4AttentionBackend, DeepseekV4Target])
def test_row_04_no_method_has_a_catch_all_parameter(owner):
    methods = [method for name, method in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")]
    assert methods
    for method in methods:
        kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, method.__name__


def test_row_05_advance_is_called_where_a_draft_backend_is_declared():
    calls = drive(2, draft_input([4], [3], [2]))
    assert calls == [("begin", [6]), ("advance", [7]), ("forward", [0])]
    assert NextnConfig().needs.draft_backend and not NgramConfig().needs.draft_backend


def test_row_10_a_prompt_is_caught_up_by_one_call_with_the_lengths_of_the_pass():
    inputs = draft_input([0, 0], [21, 22], [21, 22], num_prefill_reqs=2)
    assert drive(1, inputs) == [("begin", [21, 22])]
    assert inputs.seq_lens_B.tolist() == [21, 22]


def test_row_11_decode_steps_continue_from_the_lengths_of_the_target():
    inputs = draft_input([10, 20], [4, 4], [1, 4])
    calls = drive(3, inputs)
    assert [c for c in calls if c[0] == "advance"] == [("advance", [12, 25]), ("advance", [13, 26])]
    assert inputs.seq_lens_B.tolist() == [11, 24], "the caller's lengths are not modified"
