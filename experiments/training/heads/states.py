"""Where a training step gets the target's states from: made on the fly, or kept on disk; and what that takes."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from experiments.memory import GIB
from experiments.training.heads.frozen import FrozenTarget
from experiments.training.heads.texts import Text
from specdec.api import LAST_LAYER
from specdec.errors import CapacityError

FOLDER = "states"
NAME = "states"


def layers_with_last(layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that a head reads, and the last one, which the target's own predictions come from."""
    return layers if LAST_LAYER in layers else (*layers, LAST_LAYER)


def dump_bytes(texts: Sequence[Text], target: FrozenTarget, layers: tuple[int, ...]) -> int:
    """Bytes that the states of these texts take."""
    num_tokens = sum(len(text.tokens) for text in texts)
    return num_tokens * len(layers_with_last(layers)) * target.width * target.lent.embedding.element_size()


def check_disk(num_bytes: int, folder: Path) -> None:
    """Raise CapacityError unless ``folder`` has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CapacityError(
            f"the target's states take {num_bytes / GIB:,.2f} GiB, and {folder} has {free / GIB:,.2f} GiB left: "
            "compute them in every step instead (conf: trainer.dump=false)"
        )


class LiveStates:
    """States computed anew whenever they are asked for."""

    def __init__(self, target: FrozenTarget, layers: tuple[int, ...]) -> None:
        self._target, self._layers = target, layers_with_last(layers)

    @torch.no_grad()
    def of(self, numbers: Sequence[int], tokens_BL: torch.Tensor) -> torch.Tensor:
        """States [B, L, X] of the layers and of the last one."""
        return self._target.states(tokens_BL, self._layers)


class DumpedStates:
    """States of every text in a file of its own, computed once."""

    def __init__(self, live: LiveStates, texts: Sequence[Text], folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder / FOLDER, device
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            states = live.of([number], torch.tensor([text.tokens], device=device))
            save_file({NAME: states[0].cpu().contiguous()}, self._path(number))

    def of(self, numbers: Sequence[int], tokens_BL: torch.Tensor) -> torch.Tensor:
        """States [B, L, X]; zero behind the end of a text."""
        length = tokens_BL.shape[1]
        rows = [load_file(self._path(number))[NAME][:length] for number in numbers]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, length - len(row))) for row in rows]).to(
            self._device
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.safetensors"
