"""Write a model as a folder in the official storage: fp8 linears, fp4 experts, bf16 and fp32 rest."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from backends.deepseek_v4.weights.files import CONFIG, INDEX
from backends.deepseek_v4.weights.names import scale_name, sources_of
from backends.deepseek_v4.weights.quantization import Quantization
from backends.deepseek_v4.weights.storage import quantize_fp4, quantize_fp8_blocks

_FP8 = re.compile(
    r"\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)\.weight$"
    r"|\.ffn\.shared_experts\.w[123]\.weight$|^mtp\.\d+\.[eh]_proj\.weight$"
)
_FP4 = re.compile(r"\.ffn\.experts\.\d+\.w[123]\.weight$")
_FP32 = re.compile(r"hc_(attn|ffn|head)_(fn|base|scale)$|\.attn_sink$|\.ape$|\.gate\.bias$")


def stored_tensors(parameters: Mapping[str, torch.Tensor], num_experts: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Official names and stored tensors of our parameters; experts are unstacked, scales follow their weight."""
    for parameter, value in parameters.items():
        names = sources_of(parameter, num_experts)
        parts = value.unbind(0) if names != [parameter] else (value,)
        for name, part in zip(names, parts, strict=True):
            yield from _stored(name, part.detach().cpu())


def as_stored(name: str, value: torch.Tensor) -> torch.dtype:
    """Storage type of an official key: e4m3, int8 (packed fp4), fp32, int64 or bf16."""
    if not value.is_floating_point():
        return torch.int64
    if _FP8.search(name):
        return torch.float8_e4m3fn
    if _FP4.search(name):
        return torch.int8
    return torch.float32 if _FP32.search(name) else torch.bfloat16


def write_checkpoint(
    folder: Path,
    config: Mapping[str, object],
    parameters: Mapping[str, torch.Tensor],
    *,
    num_experts: int,
    shard_bytes: int = 15 * 2**20,
) -> list[Path]:
    """Write ``config.json``, shards of at most ``shard_bytes`` (unless one tensor is larger) and their index.

    ``config`` is the official spelling; ``quantization_config`` and ``expert_dtype`` are added. Returns the shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    full = {**config, "expert_dtype": "fp4", "quantization_config": Quantization().to_dict()}
    (folder / CONFIG).write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in stored_tensors(parameters, num_experts):
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        size += tensor.nbytes
    return _save(folder, shards)


def _stored(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    kind = as_stored(name, value)
    if kind not in (torch.float8_e4m3fn, torch.int8):
        yield name, value.to(kind)
        return
    weight, scales = quantize_fp8_blocks(value) if kind == torch.float8_e4m3fn else quantize_fp4(value)
    yield name, weight
    scale = scale_name(name)
    assert scale is not None, name
    yield scale, scales


def _save(folder: Path, shards: list[dict[str, torch.Tensor]]) -> list[Path]:
    paths = [folder / f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for path, tensors in zip(paths, shards, strict=True):
        save_file(tensors, path, metadata={"format": "pt"})
    weight_map = {name: path.name for path, tensors in zip(paths, shards, strict=True) for name in tensors}
    total = sum(t.nbytes for tensors in shards for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return paths
