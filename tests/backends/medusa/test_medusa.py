"""Medusa heads: which state they read, round trip under the public names, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.medusa.backend import MedusaBackend
from backends.medusa.model import MedusaConfig, MedusaModel
from backends.medusa.weights import load_medusa, save_medusa
from specdec.api import Draft, DraftInput, RoundLayout
from specdec.errors import CheckpointError, MetadataError

CPU, WIDTH, VOCABULARY = torch.device("cpu"), 6, 11


class NoDraw:
    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        raise AssertionError("these tests draw nothing")


def heads(num_heads: int = 3, num_blocks: int = 1) -> MedusaModel:
    torch.manual_seed(0)
    config = MedusaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_heads=num_heads, num_blocks=num_blocks)
    model = MedusaModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def an_input(hidden_TD: torch.Tensor | None) -> DraftInput:
    layout = RoundLayout(rows=(0, 1), start_positions=(4, 2), query_lens=(3, 2))
    return DraftInput(
        layout=layout,
        next_tokens_T=torch.zeros(5, dtype=torch.int64),
        hidden_TD=hidden_TD,
        num_committed_B=torch.tensor([2, 1]),
        last_tokens_B=torch.zeros(2, dtype=torch.int64),
        seq_lens_B=torch.tensor([6, 3]),
        wanted_B=(True, True),
        max_draft_B=(3, 3),
        limits_B=torch.tensor([3, 3]),
        sampling=NoDraw(),
        histories=(),
        tables={},
    )


def test_each_step_is_the_next_head_on_the_newest_committed_state() -> None:
    model, hidden_TD = heads(), torch.randn(5, 2 * WIDTH)
    backend = MedusaBackend(model, lambda states: states[..., :WIDTH] + 1)
    newest_BD = hidden_TD[[1, 3], :WIDTH] + 1
    found = [backend.begin_draft(an_input(hidden_TD))]
    for _ in range(2):
        backend.advance_draft_forward_metadata(torch.tensor([7, 4]))
        found.append(backend.forward(torch.tensor([0, 0])))
    for number, logits in enumerate(found):
        block, linear = model[number]
        by_hand = newest_BD + torch.nn.functional.silu(block.linear(newest_BD))
        torch.testing.assert_close(logits, linear(by_hand))
    with pytest.raises(MetadataError, match="at most 3 tokens"):
        backend.forward(torch.tensor([0, 0]))
    with pytest.raises(MetadataError, match="got none"):
        backend.begin_draft(an_input(None))


def test_untrained_heads_predict_what_the_target_predicts() -> None:
    model, head = MedusaModel(MedusaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_heads=2)), torch.randn(11, 6)
    model.begin_as(head)
    states = torch.randn(4, WIDTH)
    torch.testing.assert_close(model.logits(states, 1), states @ head.T)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_round_trip_under_the_public_names(tmp_path: Path, num_blocks: int) -> None:
    model, head = heads(num_blocks=num_blocks), torch.randn(VOCABULARY, WIDTH)
    stored = load_file(save_medusa(model, tmp_path))
    assert {"0.0.linear.weight", "0.0.linear.bias", f"2.{num_blocks}.weight"} <= set(stored)
    found = load_medusa(tmp_path, head=head, device=CPU, dtype=torch.float32)
    assert found.config == model.config
    assert all(value.equal(found.state_dict()[name]) for name, value in model.state_dict().items())


def test_heads_of_another_target_and_other_files_are_refused(tmp_path: Path) -> None:
    path = save_medusa(heads(), tmp_path)
    with pytest.raises(CheckpointError, match="for this target it is"):
        load_medusa(tmp_path, head=torch.randn(12, WIDTH), device=CPU, dtype=torch.float32)
    save_file({"fc.weight": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="no part of Medusa heads"):
        load_medusa(tmp_path, head=torch.randn(11, WIDTH), device=CPU, dtype=torch.float32)
    path.unlink()
    with pytest.raises(CheckpointError, match="pickled heads do not load"):
        load_medusa(tmp_path, head=torch.randn(11, WIDTH), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, wrong: float) -> None:
    model = heads()
    with torch.no_grad():
        model[1][0].linear.bias[2] = wrong
    path = save_medusa(model, tmp_path)
    with pytest.raises(CheckpointError) as refused:
        load_medusa(tmp_path, head=torch.randn(VOCABULARY, WIDTH), device=CPU, dtype=torch.float32)
    message = (
        f"{path}: 1 of 6 values of 1.0.linear.bias are NaN or inf; train the heads again with a lower learning rate"
    )
    assert str(refused.value).startswith(message)
