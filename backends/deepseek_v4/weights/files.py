"""CheckpointFiles: the safetensors shards of a folder as one strict mapping; knows nothing of the model.

Only ``config.json`` and safetensors are ever read; code that lies in a checkpoint folder is never executed.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from specdec.errors import CheckpointError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_json(path: Path) -> dict:
    """A JSON object; raises CheckpointError naming the file when it is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a checkpoint folder needs it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); copy it again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


class CheckpointFiles:
    """Keys and tensors of a checkpoint folder.

    ``keys`` are the raw names in the shards. Raises CheckpointError when the folder, a shard of the index or a
    key of the index is missing, or when a shard is truncated.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint folder {folder} does not exist (conf: target.checkpoint)")
        self.config = read_json(folder / CONFIG)
        self._shards = {name: self._open(name) for name in self._shard_names()}
        self._shard_of = {key: name for name, shard in self._shards.items() for key in shard.keys()}
        self._check_index()

    @property
    def keys(self) -> set[str]:
        return set(self._shard_of)

    def read(self, key: str) -> torch.Tensor:
        """One tensor in its storage type, on the CPU."""
        return self._shards[self._shard_of[key]].get_tensor(key)

    def path_of(self, key: str) -> Path:
        """The shard that holds a tensor."""
        return self.folder / self._shard_of[key]

    def _shard_names(self) -> list[str]:
        if (self.folder / INDEX).exists():
            weight_map = read_json(self.folder / INDEX).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise CheckpointError(f"{self.folder / INDEX} has no weight_map; copy it again")
            self._index: dict[str, str] = weight_map
            return sorted(set(weight_map.values()))
        self._index = {}
        if (self.folder / SINGLE).exists():
            return [SINGLE]
        raise CheckpointError(f"{self.folder} has neither {INDEX} nor {SINGLE}; weights load from safetensors only")

    def _open(self, name: str) -> safe_open:
        path = self.folder / name
        if not path.exists():
            raise CheckpointError(f"{path} is named in {INDEX} but missing; the checkpoint is half-copied")
        try:
            return safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); truncated or damaged, copy it again") from None

    def _check_index(self) -> None:
        wrong = sorted(k for k, shard in self._index.items() if self._shard_of.get(k) != shard)
        if wrong:
            raise CheckpointError(
                f"{len(wrong)} keys of {INDEX} are not in the shard it names, for example {wrong[0]} "
                f"(expected in {self._index[wrong[0]]}); the shards and the index do not belong together"
            )
        if self._index and (extra := sorted(self.keys - set(self._index))):
            raise CheckpointError(f"{len(extra)} keys of the shards are not in {INDEX}, for example {extra[0]}")
