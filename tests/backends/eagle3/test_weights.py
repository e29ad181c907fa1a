"""The common safetensors layout: round trip, both spellings of the layers, borrowed parts, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.eagle3.config import Eagle3Config, config_from_dict, default_layers
from backends.eagle3.weights import load_eagle3, save_eagle3
from specdec.errors import CheckpointError, ConfigError, UnsupportedError

CPU = torch.device("cpu")
NAMES = {
    "fc.weight",
    *(f"midlayer.self_attn.{p}_proj.weight" for p in "qkvo"),
    *(f"midlayer.mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
    *(f"midlayer.{n}.weight" for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    "norm.weight",
    "lm_head.weight",
}


def reload(folder: Path, target_part):
    return load_eagle3(folder, target_part, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("size", [23, 9])
def test_round_trip_keeps_every_tensor_under_its_common_name(head, target_part, tmp_path: Path, size: int) -> None:
    model = head(draft_vocab_size=size)
    stored = load_file(save_eagle3(model, tmp_path))
    assert set(stored) == NAMES | ({"d2t", "t2d"} if size == 9 else set())
    assert stored["fc.weight"].shape == (16, 48) and stored["midlayer.self_attn.q_proj.weight"].shape == (32, 32)
    found = reload(tmp_path, target_part)
    assert found.config == model.config
    for name in NAMES:
        assert found.state_dict()[name].equal(model.state_dict()[name])
    assert found.target_ids_X.equal(model.target_ids_X)
    assert found.embed_tokens.weight.data_ptr() == target_part.embedding.data_ptr()


def test_the_reduced_vocabulary_maps_by_offset(head, tmp_path: Path) -> None:
    model = head(draft_vocab_size=9)
    stored = load_file(save_eagle3(model, tmp_path))
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    ids = stored["d2t"] + torch.arange(9)
    assert stored["t2d"].nonzero().flatten().equal(ids)
    states = torch.randn(4, 16)
    spread = model.target_logits(states)
    assert spread[:, ids].equal(model.logits(states))
    assert bool((spread[:, ~stored["t2d"]] == float("-inf")).all())


def test_other_spellings_and_an_own_embedding_load(head, target_part, tmp_path: Path) -> None:
    model = head()
    save_eagle3(model, tmp_path)
    path = tmp_path / "model.safetensors"
    own = torch.randn(23, 16)
    tensors = {f"model.{k.replace('midlayer.', 'layers.0.')}": v for k, v in load_file(path).items()}
    save_file({**tensors, "embed_tokens.weight": own}, path)
    found = reload(tmp_path, target_part)
    assert found.own_embedding and found.embed_tokens.weight.equal(own)
    assert found.midlayer.mlp.up_proj.weight.equal(model.midlayer.mlp.up_proj.weight)
    assert "embed_tokens.weight" in load_file(save_eagle3(found, tmp_path / "again"))


def test_a_full_vocabulary_may_leave_the_head_to_the_target(head, target_part, tmp_path: Path) -> None:
    path = save_eagle3(head(), tmp_path)
    save_file({k: v for k, v in load_file(path).items() if k != "lm_head.weight"}, path)
    assert reload(tmp_path, target_part).lm_head.weight.equal(target_part.head)


def test_layers_are_read_in_both_spellings_and_have_the_common_default(head) -> None:
    raw = head().config.to_dict()
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    assert raw["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config_from_dict(raw, num_target_layers=5).hidden_layers == (0, 2, 4)
    del raw["eagle_config"]
    assert config_from_dict(raw, num_target_layers=5).hidden_layers == (0, 2, 4)
    del raw["eagle_aux_hidden_state_layer_ids"]
    assert config_from_dict(raw, num_target_layers=32).hidden_layers == (1, 15, 28)
    assert default_layers(5) == (0, 2, 4) and default_layers(3) == (0, 1, 2)
    with pytest.raises(ConfigError, match="the target has 2"):
        default_layers(2)


def test_the_nested_form_of_speculators_is_read(head) -> None:
    flat = head(draft_vocab_size=9).config.to_dict()
    own = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids")
    nested = {name: flat[name] for name in own}
    nested["transformer_layer_config"] = {k: v for k, v in flat.items() if k not in (*own, "eagle_config")}
    assert config_from_dict(nested, num_target_layers=5) == head(draft_vocab_size=9).config


def test_what_does_not_belong_to_the_target_is_refused(head, target_part, tmp_path: Path) -> None:
    def changed(**values: object) -> Path:
        folder = tmp_path / "-".join(values)
        save_eagle3(head(), folder)
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**raw, **values}))
        return folder

    with pytest.raises(CheckpointError, match="a vocabulary of 24 tokens, the target has 23"):
        reload(changed(vocab_size=24), target_part)
    with pytest.raises(CheckpointError, match=r"reads layer 7, the target has layers 0\.\.4"):
        reload(changed(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 7]}), target_part)
    with pytest.raises(CheckpointError, match="fc.weight has shape"):
        reload(changed(target_hidden_size=32), target_part)
    with pytest.raises(UnsupportedError, match="num_hidden_layers=2"):
        reload(changed(num_hidden_layers=2), target_part)
    with pytest.raises(UnsupportedError, match="rope_scaling='llama3'"):
        reload(changed(rope_scaling={"rope_type": "llama3"}), target_part)
    for wrong in ("abc", [0, 1.5, 2], 3):
        with pytest.raises(ConfigError, match="must be a list of 3 layers, got"):
            reload(changed(eagle_config={"eagle_aux_hidden_state_layer_ids": wrong}), target_part)
    with pytest.raises(ConfigError, match="num_attention_heads must be an integer of at least 1, got 0"):
        reload(changed(num_attention_heads=0, head_dim=None), target_part)
    path = save_eagle3(head(), tmp_path / "less")
    save_file({k: v for k, v in load_file(path).items() if k != "norm.weight"}, path)
    with pytest.raises(CheckpointError, match="has no norm.weight"):
        reload(tmp_path / "less", target_part)
    path = save_eagle3(head(draft_vocab_size=9), tmp_path / "mixed")
    save_file({**load_file(path), "d2t": torch.zeros(9, dtype=torch.int64)}, path)
    with pytest.raises(CheckpointError, match="d2t and t2d name different tokens"):
        reload(tmp_path / "mixed", target_part)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        (tmp_path / "pickled").mkdir()
        (tmp_path / "pickled" / "config.json").write_text(json.dumps(head().config.to_dict()))
        reload(tmp_path / "pickled", target_part)
    with pytest.raises(ConfigError, match="reads 3 target layers"):
        Eagle3Config(
            **{name: 8 for name in ("vocab_size", "draft_vocab_size", "hidden_size", "target_hidden_size")},
            intermediate_size=8,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=8,
            hidden_layers=(1, 2),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_weights_that_are_no_numbers_are_refused(head, target_part, tmp_path: Path, dtype: torch.dtype) -> None:
    path = save_eagle3(head(), tmp_path)
    stored = load_file(path)
    stored["fc.weight"][1, 2] = float("nan")
    stored["fc.weight"] = stored["fc.weight"].to(dtype)
    save_file(stored, path)
    with pytest.raises(CheckpointError) as refused:
        reload(tmp_path, target_part)
    message = f"{path}: 1 of 768 values of fc.weight are NaN or inf; train the head again with a lower learning rate"
    assert str(refused.value).startswith(message)
