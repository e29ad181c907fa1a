"""Optimizer of a run: Muon over stacks of equal-shaped matrices, AdamW for embeddings, heads and vectors.

A stack holds float32 masters; the model's parameters are copies of them, rounded to storage when asked. So one
batched update serves all layers and experts, and rounding never enters the compiled forward.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch

from experiments.training.config import OptimizerSettings
from experiments.training.muon import muon_step
from experiments.training.rounding import Storage, round_to_storage, storage_of
from experiments.training.schedule import Stage

_EMBEDDING, _HEAD = "embed.weight", "head.weight"
_NOT_MUON = ("ffn.gate.weight", ".ape", "weights_proj.weight")


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon moves a parameter: hidden matrices, also stacked ones; not routers, tables or connections."""
    mixing = name.rsplit(".", 1)[-1].startswith("hc_")
    return parameter.dim() >= 2 and name not in (_EMBEDDING, _HEAD) and not mixing and not name.endswith(_NOT_MUON)


class MatrixStack:
    """Masters and momentum [X, R, C] of all matrices of one shape and storage. The single writer of both."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter], storage: Storage) -> None:
        self.names, self.storage = tuple(named), storage
        self.parameters = list(named.values())
        self.masters = torch.cat([p.detach().reshape(-1, *p.shape[-2:]).float() for p in self.parameters])
        self.momentum = torch.zeros_like(self.masters)
        self._gradient = torch.zeros_like(self.masters)

    def slices(self, stack: torch.Tensor) -> list[torch.Tensor]:
        """Views of a stack in the parameters' shapes."""
        counts = [p.numel() // (p.shape[-1] * p.shape[-2]) for p in self.parameters]
        return [part.view(p.shape) for part, p in zip(stack.split(counts), self.parameters, strict=True)]

    def step(self, *, lr: float, momentum: float, weight_decay: float) -> None:
        """Move masters by the parameters' gradients, which are used up."""
        torch._foreach_copy_(self.slices(self._gradient), [p.grad for p in self.parameters])
        muon_step(self.masters, self.momentum, self._gradient, lr=lr, momentum=momentum, weight_decay=weight_decay)

    @torch.no_grad()
    def publish(self, *, rounded: bool) -> None:
        """Copy masters, rounded to storage or not, into the parameters in place."""
        values = round_to_storage(self.masters, self.storage) if rounded else self.masters
        torch._foreach_copy_([p.data for p in self.parameters], self.slices(values))


class TrainingOptimizer:
    """Every trained parameter, split between Muon and AdamW."""

    def __init__(self, trained: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings) -> None:
        self.settings = settings
        self.stacks = [MatrixStack(named, kind) for kind, named in _by_shape(trained)]
        rest = {name: p for name, p in trained.items() if not is_matrix(name, p)}
        by_rate: dict[float, list[torch.nn.Parameter]] = defaultdict(list)
        for name, parameter in rest.items():
            by_rate[_rate(name, parameter, settings)].append(parameter)
        groups = [{"params": params, "lr": lr, "base_lr": lr} for lr, params in by_rate.items()]
        on_cuda = any(p.is_cuda for p in rest.values())
        self.adam = torch.optim.AdamW(
            groups, betas=tuple(settings.betas), eps=1e-10, weight_decay=0.0, fused=on_cuda or None
        )

    def step(self, stage: Stage) -> None:
        """One update from the gradients; afterwards the parameters hold what the next forward shall see."""
        settings = self.settings
        for stack in self.stacks:
            stack.step(
                lr=settings.matrix_lr * stage.lr,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
            stack.publish(rounded=stage.quantise)
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(
                [p for group in self.adam.param_groups for p in group["params"]], settings.clip, foreach=True
            )
        for group in self.adam.param_groups:
            group["lr"] = group["base_lr"] * stage.lr
        self.adam.step()
        for stack in self.stacks:
            for parameter in stack.parameters:
                parameter.grad = None
        self.adam.zero_grad(set_to_none=True)

    def publish(self, *, rounded: bool) -> None:
        """Copy all masters into the parameters in place."""
        for stack in self.stacks:
            stack.publish(rounded=rounded)

    def state_dict(self) -> dict[str, object]:
        """Masters, momentum and AdamW's state."""
        stacks = [{"names": s.names, "masters": s.masters, "momentum": s.momentum} for s in self.stacks]
        return {"stacks": stacks, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore what ``state_dict`` gave, in place."""
        for stack, saved in zip(self.stacks, state["stacks"], strict=True):
            assert stack.names == tuple(saved["names"]), "the state belongs to another model"
            stack.masters.copy_(saved["masters"])
            stack.momentum.copy_(saved["momentum"])
        self.adam.load_state_dict(state["adam"])


@torch.no_grad()
def balance_router(bias_E: torch.Tensor, load_E: torch.Tensor, step: float) -> None:
    """Raise the bias of experts below the mean load and lower the others', in place (arXiv:2408.15664)."""
    bias_E.add_(torch.sign(load_E.mean() - load_E), alpha=step)


def _by_shape(trained: Mapping[str, torch.nn.Parameter]) -> list[tuple[Storage, dict[str, torch.nn.Parameter]]]:
    groups: dict[tuple[object, ...], dict[str, torch.nn.Parameter]] = defaultdict(dict)
    for name, parameter in trained.items():
        if is_matrix(name, parameter):
            groups[(storage_of(name, parameter), *parameter.shape[-2:])][name] = parameter
    return [(key[0], named) for key, named in groups.items()]


def _rate(name: str, parameter: torch.Tensor, settings: OptimizerSettings) -> float:
    if name == _EMBEDDING:
        return settings.embedding_lr
    if name == _HEAD:
        return settings.head_lr
    return settings.vector_lr if parameter.dim() < 2 else settings.mixing_lr
