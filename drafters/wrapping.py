"""What drafters that run other drafters share: an input with other limits, and what one of them needs of another."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specdec.api import Drafter, DrafterConfig, DrafterNeeds, DraftInput
from specdec.errors import ConfigError

SEAM = ("num_draft_tokens", "needs", "build")


def check_is_drafter(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is the configuration of a drafter; ``name`` is its key below ``drafter``."""
    missing = [attribute for attribute in SEAM if attribute not in dir(value)]
    if missing:
        raise ConfigError(
            f"{name} must be the configuration of a drafter, got {value!r} without {', '.join(missing)} "
            f"(conf: drafter.{name})"
        )


def limited(inputs: DraftInput, limits: Sequence[int]) -> DraftInput:
    """The same pass with other limits, each at most the request's own; 0 means that it wants nothing."""
    limits = tuple(limits)
    return replace(
        inputs,
        wanted_B=tuple(limit > 0 for limit in limits),
        max_draft_B=limits,
        limits_B=torch.tensor(limits, dtype=torch.int64, device=inputs.seq_lens_B.device),
    )


def on_the_host(needs: DrafterNeeds) -> DrafterNeeds:
    """The needs of a drafter that decides on the host around one with these needs: no recorded round."""
    return replace(needs, history=True, recordable=False)


def joined_needs(members: Sequence[DrafterConfig | Drafter]) -> DrafterNeeds:
    """What all of them need together; hidden layers in the order in which they are first named."""
    layers = dict.fromkeys(layer for member in members for layer in member.needs.hidden_layers)
    return DrafterNeeds(
        hidden_layers=tuple(layers),
        history=True,
        draft_backend=any(member.needs.draft_backend for member in members),
        trees=any(member.needs.trees for member in members),
    )


def sees_every_pass(needs: DrafterNeeds) -> bool:
    """Whether a drafter must be shown passes in which nobody wants its tokens: it follows them in caches of its own."""
    return needs.draft_backend or bool(needs.hidden_layers)


def hidden_of(hidden_TD: torch.Tensor | None, given: Sequence[int], wanted: Sequence[int]) -> torch.Tensor | None:
    """Of the states of the layers ``given``, side by side and equally wide, those of the layers ``wanted``."""
    if hidden_TD is None or not wanted:
        return None
    if tuple(given) == tuple(wanted):
        return hidden_TD
    parts = hidden_TD.chunk(len(given), dim=1)
    return torch.cat([parts[given.index(layer)] for layer in wanted], dim=1)
