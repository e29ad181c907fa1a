import pytest
import torch

from drafters.nextn import NextnConfig
from specdec.api import LAST_LAYER, Draft, DraftInput, DraftSetup
from specdec.errors import ConfigError

VOCABULARY = 8


class RecordingBackend:
    """Proposes 1, 2, 3, ... and keeps the calls that it gets."""

    cache_groups = ()

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        self.calls.append(("begin", list(inputs.layout.rows)))
        return self._logits(torch.zeros(inputs.layout.num_reqs, dtype=torch.int64))

    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        self.calls.append(("advance", seq_lens_B.tolist()))

    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        self.calls.append(("forward", tokens_B.tolist()))
        return self._logits(tokens_B)

    def _logits(self, tokens_B: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(tokens_B + 1, VOCABULARY).float()


class LawView:
    """A sampling view that reports the law of its draws."""

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        tokens_B = logits_BV.argmax(dim=1)
        return Draft(tokens_B=tokens_B, probs_BV=None if greedy else logits_BV)


def make_drafter(backend: RecordingBackend, **options):
    setup = DraftSetup(
        device=torch.device("cpu"),
        vocab_size=VOCABULARY,
        max_batch=4,
        max_context=64,
        draft_backend=backend,
    )
    return NextnConfig(**options).build(setup)


def test_nextn_catches_up_then_advances_and_forwards_in_turn(make_input, argmax_view) -> None:
    backend = RecordingBackend()
    inputs = make_input([[5, 6, 7]], sampling=argmax_view)
    proposal = make_drafter(backend, num_draft_tokens=3).propose(inputs)
    assert proposal.tokens_BK.tolist() == [[1, 2, 3]]
    assert proposal.num_drafted_B.tolist() == [3]
    # Two positions are committed: the newest token, fed by the catch-up, sits at position 2.
    assert backend.calls == [
        ("begin", [0]),
        ("advance", [3]),
        ("forward", [1]),
        ("advance", [4]),
        ("forward", [2]),
    ]
    assert argmax_view.positions == [[3], [4], [5]]


def test_nextn_of_one_token_runs_no_step(make_input) -> None:
    backend = RecordingBackend()
    proposal = make_drafter(backend, num_draft_tokens=1).propose(make_input([[5, 6]]))
    assert proposal.tokens_BK.tolist() == [[1]]
    assert [name for name, _ in backend.calls] == ["begin"]


def test_nextn_catches_up_when_nobody_wants_tokens(make_input) -> None:
    backend = RecordingBackend()
    assert make_drafter(backend).propose(make_input([[5, 6]], limits=[0])) is None
    assert [name for name, _ in backend.calls] == ["begin"]


def test_nextn_runs_as_many_steps_as_the_longest_limit(make_input) -> None:
    backend = RecordingBackend()
    inputs = make_input([[5, 6, 7], [5, 6], [5]], limits=[2, 1, 0])
    proposal = make_drafter(backend, num_draft_tokens=5).propose(inputs)
    assert proposal.num_drafted_B.tolist() == [2, 1, 0]
    assert proposal.tokens_BK.shape == (3, 2)


def test_nextn_keeps_short_drafts_on_their_last_provisional_row(make_input) -> None:
    backend = RecordingBackend()
    histories = [[5] * 10, [5] * 10, [5] * 10, [5] * 10]
    make_drafter(backend, num_draft_tokens=4).propose(make_input(histories, limits=[4, 3, 1, 0]))
    lengths = [lengths for name, lengths in backend.calls if name == "advance"]
    # Nine positions are committed, so no step may write below position 9: lengths are at least 10.
    assert lengths == [[10, 10, 10, 10], [11, 11, 10, 10], [12, 11, 10, 10]]


def test_nextn_reports_laws_only_when_the_view_does(make_input) -> None:
    inputs = make_input([[5, 6]], sampling=LawView())
    sampled = make_drafter(RecordingBackend(), num_draft_tokens=2).propose(inputs)
    assert sampled.probs_BKV.shape == (1, 2, VOCABULARY)
    greedy = make_drafter(RecordingBackend(), num_draft_tokens=2, proposals="greedy").propose(inputs)
    assert greedy.probs_BKV is None


def test_nextn_declares_what_it_needs() -> None:
    needs = NextnConfig().needs
    assert (needs.hidden_layers, needs.draft_backend, needs.history) == ((LAST_LAYER,), True, False)


def test_nextn_without_a_draft_model_is_refused() -> None:
    setup = DraftSetup(device=torch.device("cpu"), vocab_size=8, max_batch=1, max_context=8)
    with pytest.raises(ConfigError, match="needs a draft model"):
        NextnConfig().build(setup)


def test_nextn_config_refuses_unknown_proposals() -> None:
    with pytest.raises(ConfigError, match="proposals must be one of sampled, greedy, got 'random'"):
        NextnConfig(proposals="random")
