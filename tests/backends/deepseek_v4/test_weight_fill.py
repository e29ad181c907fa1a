"""Strict loading: round trip through the official storage, and every way a folder can be wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.deepseek_v4.weights.files import CheckpointFiles
from backends.deepseek_v4.weights.fill import checkpoint_has_nextn, fill_parameters
from backends.deepseek_v4.weights.names import canonical_name, has_nextn, sources_of
from backends.deepseek_v4.weights.writer import write_checkpoint
from specdec.errors import CheckpointError

EXPERTS = 3


def parameters() -> dict[str, torch.Tensor]:
    layer = "layers.0"
    return {
        "embed.weight": torch.randn(20, 64),
        f"{layer}.attn.wq_a.weight": torch.randn(160, 64),
        f"{layer}.attn.kv_norm.weight": torch.rand(32),
        f"{layer}.attn.attn_sink": torch.randn(4),
        f"{layer}.hc_attn_fn": torch.randn(24, 256),
        f"{layer}.ffn.gate.tid2eid": torch.randint(0, EXPERTS, (20, 2)),
        f"{layer}.ffn.experts.w1": torch.randn(EXPERTS, 32, 64),
        f"{layer}.ffn.experts.w2": torch.randn(EXPERTS, 64, 32),
        "mtp.0.e_proj.weight": torch.randn(64, 64),
    }


def empty_like(source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: torch.full_like(v, 7) for k, v in source.items()}


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path, {"model_type": "deepseek_v4"}, parameters(), num_experts=EXPERTS, shard_bytes=20_000)
    return tmp_path


def test_round_trip_fills_every_parameter_and_is_stable_after_one_pass(folder, tmp_path):
    first = empty_like(parameters())
    fill_parameters(CheckpointFiles(folder), first, EXPERTS)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert not any(torch.equal(v, torch.full_like(v, 7)) for v in first.values())
    write_checkpoint(tmp_path / "again", {}, first, num_experts=EXPERTS)
    second = empty_like(first)
    fill_parameters(CheckpointFiles(tmp_path / "again"), second, EXPERTS)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_storage_types_are_the_official_ones(folder):
    stored = {k: v for shard in folder.glob("*.safetensors") for k, v in load_file(shard).items()}
    dtypes = {k: v.dtype for k, v in stored.items()}
    assert dtypes["embed.weight"] == dtypes["layers.0.attn.kv_norm.weight"] == torch.bfloat16
    assert dtypes["layers.0.attn.wq_a.weight"] == torch.float8_e4m3fn
    assert stored["layers.0.attn.wq_a.scale"].shape == (2, 1)
    assert dtypes["layers.0.attn.wq_a.scale"] == torch.float8_e8m0fnu
    assert dtypes["layers.0.ffn.experts.2.w1.weight"] == torch.int8
    assert stored["layers.0.ffn.experts.2.w1.weight"].shape == (32, 32)
    assert stored["layers.0.ffn.experts.2.w1.scale"].shape == (32, 2)
    assert dtypes["layers.0.attn.attn_sink"] == dtypes["layers.0.hc_attn_fn"] == torch.float32
    assert dtypes["layers.0.ffn.gate.tid2eid"] == torch.int64


@pytest.mark.parametrize(
    ("raw", "official"),
    [
        ("model.embed_tokens.weight", "embed.weight"),
        ("head.weight", "head.weight"),
        ("model.norm.weight", "norm.weight"),
        ("model.hc_head.hc_fn", "hc_head_fn"),
        ("model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"),
        ("model.layers.3.attn.compressor.norm.weight", "layers.3.attn.compressor.norm.weight"),
        ("model.layers.3.ffn.experts.7.w1.weight", "layers.3.ffn.experts.7.w1.weight"),
        ("mtp.0.norm.weight", "mtp.0.norm.weight"),
        ("mtp.0.attn.wq_a.scale", "mtp.0.attn.wq_a.scale"),
        ("other.model.norm.weight", "other.model.norm.weight"),
    ],
)
def test_names_are_mapped_whole(raw, official):
    assert canonical_name(raw) == official


def test_nextn_is_recognised_by_its_e_proj_only():
    assert has_nextn({"mtp.0.e_proj.weight"})
    assert not has_nextn({"mtp.0.attn.wq_a.weight", "layers.0.e_proj.weight"})
    assert sources_of("mtp.0.ffn.experts.w2", 2) == [f"mtp.0.ffn.experts.{e}.w2.weight" for e in range(2)]


def test_a_dspark_checkpoint_is_refused_by_name(tmp_path):
    save_file({"mtp.0.main_proj.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="DSpark"):
        checkpoint_has_nextn(CheckpointFiles(tmp_path))


def test_a_missing_folder_names_the_option(tmp_path):
    with pytest.raises(CheckpointError, match="target.checkpoint"):
        CheckpointFiles(tmp_path / "none")


def test_a_folder_without_weights_or_config_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="config.json"):
        CheckpointFiles(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="safetensors only"):
        CheckpointFiles(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        CheckpointFiles(tmp_path)


def test_a_missing_shard_is_named(folder):
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}.*half-copied"):
        CheckpointFiles(folder)


def test_a_truncated_shard_is_named(folder):
    shard = sorted(folder.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=f"{shard.name}.*truncated"):
        CheckpointFiles(folder)


def test_an_index_of_another_checkpoint_is_refused(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"]["embed.weight"] = shards[-1]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="embed.weight"):
        CheckpointFiles(folder)


def test_missing_left_over_and_misshapen_weights_are_named(folder):
    files = CheckpointFiles(folder)
    wanted = empty_like(parameters())
    with pytest.raises(CheckpointError, match="missing.*layers.1.attn.wkv.weight"):
        fill_parameters(files, {**wanted, "layers.1.attn.wkv.weight": torch.zeros(1)}, EXPERTS)
    fewer = {k: v for k, v in wanted.items() if k != "layers.0.attn.attn_sink"}
    with pytest.raises(CheckpointError, match="no place.*layers.0.attn.attn_sink"):
        fill_parameters(files, fewer, EXPERTS)
    with pytest.raises(CheckpointError, match=r"embed.weight has shape \(20, 64\).*\(21, 64\)"):
        fill_parameters(files, {**wanted, "embed.weight": torch.zeros(21, 64)}, EXPERTS)


def test_a_quantised_weight_without_its_scale_is_refused(tmp_path):
    weight = torch.randn(8, 64).to(torch.float8_e4m3fn)
    save_file({"mtp.0.e_proj.weight": weight}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="scale is missing"):
        fill_parameters(CheckpointFiles(tmp_path), {"mtp.0.e_proj.weight": torch.zeros(8, 64)}, 1)


def test_a_scale_of_another_shape_is_refused(tmp_path):
    weight = torch.randn(8, 64).to(torch.float8_e4m3fn)
    scale = torch.full((2, 1), 127, dtype=torch.uint8)
    save_file({"mtp.0.e_proj.weight": weight, "mtp.0.e_proj.scale": scale}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"\(2, 1\).*\(1, 1\)"):
        fill_parameters(CheckpointFiles(tmp_path), {"mtp.0.e_proj.weight": torch.zeros(8, 64)}, 1)


def test_the_same_weight_under_two_spellings_is_refused(tmp_path):
    both = {"embed.weight": torch.zeros(2, 2), "model.embed_tokens.weight": torch.ones(2, 2)}
    save_file(both, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="both mean embed.weight"):
        fill_parameters(CheckpointFiles(tmp_path), {"embed.weight": torch.zeros(2, 2)}, 1)


@pytest.mark.parametrize(
    ("key", "wrong", "named"),
    [
        ("embed.weight", 0x7FC0, "embed.weight"),
        ("layers.0.attn.attn_sink", 0x7F80_0000, "layers.0.attn.attn_sink"),
        ("layers.0.attn.wq_a.weight", 0x7F, "layers.0.attn.wq_a.weight"),
        ("layers.0.attn.wq_a.scale", 0xFF, "layers.0.attn.wq_a.weight"),
        ("layers.0.ffn.experts.2.w1.scale", 0xFF, "layers.0.ffn.experts.2.w1.weight"),
    ],
)
def test_weights_that_are_no_numbers_are_refused(folder, key, wrong, named):
    shard = next(path for path in folder.glob("*.safetensors") if key in load_file(path))
    stored = {name: value.clone() for name, value in load_file(shard).items()}
    size = stored[key].element_size()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    stored[key].view(bits).view(-1)[0] = wrong
    save_file(stored, shard)
    with pytest.raises(CheckpointError, match=rf"{shard.name}: \d+ of \d+ values of {named} are NaN or inf; copy the"):
        fill_parameters(CheckpointFiles(folder), empty_like(parameters()), EXPERTS)


def test_a_weight_of_the_largest_finite_numbers_loads(tmp_path):
    largest = torch.finfo(torch.float32).max
    stored = {"embed.weight": torch.tensor([[largest, -largest]])}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    filled = {"embed.weight": torch.zeros(1, 2)}
    fill_parameters(CheckpointFiles(tmp_path), filled, 1)
    assert filled["embed.weight"].equal(stored["embed.weight"])
