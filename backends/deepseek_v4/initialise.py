"""Random start of a model for training: unit-scale activations and residual streams that pass through unchanged.

Hyper-connections begin as in arXiv:2409.19606: the mixing matrix is close to the identity, every stream receives
the sub-block's output once, and consecutive sub-blocks read different streams.
"""

import math

import torch
from torch import nn

from backends.deepseek_v4.config import DeepseekV4Config

EMBEDDING_STD = 0.1
HEAD_STD = 0.02
MIX_SCALE = 0.01
# Logits of the static part of the connections: how much of a stream is read, and how much of one stays in place.
READ_LOGIT, SKIP_LOGIT = 2.0, -3.0
KEEP_LOGIT = 5.0

_BLOCK_OUTPUTS = (".wo_b.weight", "shared_experts.w2.weight", "experts.w2")


@torch.no_grad()
def initialise(model: nn.Module, config: DeepseekV4Config, generator: torch.Generator) -> None:
    """Fill all parameters of a DeepseekV4Model or NextNModel in place, drawing from ``generator`` (its device's).

    Outputs of sub-blocks are scaled down by the square root of their number, so that the streams keep their size.
    """
    num_outputs = 2 * config.num_hidden_layers
    for name, parameter in model.named_parameters():
        std = _std(name, parameter, num_outputs)
        if std > 0:
            nn.init.trunc_normal_(parameter, std=std, a=-3 * std, b=3 * std, generator=generator)
        else:
            parameter.fill_(_constant(name))
    for index, (name, base) in enumerate(_bases(model)):
        base.copy_(_base_start(name, index, config.hc_mult))
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):
            _fill_hash_table(table, config.n_routed_experts, generator)


def _std(name: str, parameter: torch.Tensor, num_outputs: int) -> float:
    """Standard deviation of a parameter's start; 0 for a constant."""
    if parameter.dim() < 2 or name.endswith(".ape"):
        return 0.0
    if name == "embed.weight":
        return EMBEDDING_STD
    if name == "head.weight":
        return HEAD_STD
    std = parameter.shape[-1] ** -0.5
    return std / math.sqrt(num_outputs) if name.endswith(_BLOCK_OUTPUTS) else std


def _constant(name: str) -> float:
    if name.endswith("_scale"):
        return MIX_SCALE
    return 1.0 if name.endswith("norm.weight") else 0.0


def _bases(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if name.endswith("_base")]


def _base_start(name: str, index: int, num_streams: int) -> torch.Tensor:
    """Static connection weights: pre, post and mixing logits of a sub-block, or the head's equal weights."""
    if "hc_head" in name:
        return torch.zeros(num_streams)
    pre = torch.full((num_streams,), SKIP_LOGIT)
    pre[index % num_streams] = READ_LOGIT
    return torch.cat((pre, torch.zeros(num_streams), (torch.eye(num_streams) * KEEP_LOGIT).flatten()))


def _fill_hash_table(table: torch.Tensor, num_experts: int, generator: torch.Generator) -> None:
    """Distinct experts per token id, all experts equally often up to one."""
    vocab, k = table.shape
    first = torch.randperm(vocab, generator=generator, device=generator.device) % num_experts
    steps = torch.arange(k, device=generator.device) * max(num_experts // k, 1)
    table.copy_((first.unsqueeze(-1) + steps) % num_experts)
