"""Fingerprints of a run: what it was asked for, on which checkpoint, prompts and code; knows no folder layout.

Equal fingerprints mean that a finished run need not be done again.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath

from experiments.schemas import PLAIN_DRAFTER

CODE_FOLDERS = ("specdec", "backends", "drafters", "experiments")
NUM_DIGITS = 16
# What a loader reads of a checkpoint folder, the index of several safetensors files included.
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.gguf",
)
WHOLE_BYTES = 64 << 20
EDGE_BYTES = 1 << 20
# Settings that do not change what a run computes or measures.
IRRELEVANT = ("logger", "require_lossless", "shard")
# What a baseline depends on: everything but the drafter and where to find the baseline.
BASELINE_KEYS = ("target", "workload", "sampling", "verifier", "engine")
# Their content is compared by hash in env.json, wherever it lies.
HASHED = ("workload.path", "target.checkpoint")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Hashes of what a run reads besides its configuration; ``checkpoint`` is empty without one."""

    checkpoint: str
    prompts: str
    code: str


def inputs_of(checkpoint: Path | None, prompts: str) -> Inputs:
    """Hashes for a checkpoint folder and the hash of a prompt set."""
    return Inputs(
        checkpoint="" if checkpoint is None else checkpoint_hash(checkpoint), prompts=prompts, code=code_hash()
    )


def run_key(config: Mapping[str, object], inputs: Inputs) -> str:
    """Name of the folder of a run: a hash of its configuration, checkpoint, prompt set and code."""
    kept = {name: value for name, value in config.items() if name not in IRRELEVANT}
    return _digest([_without_ignored(kept), asdict(inputs)])


def baseline_key(config: Mapping[str, object], inputs: Inputs, environment: Mapping[str, object]) -> str:
    """Name of the baseline that every run of the same target, workload, sampling, verifier and engine shares.

    ``environment`` is what must agree: machines that share a folder each find the baseline of their own kind.
    """
    return _digest([{name: config[name] for name in BASELINE_KEYS}, asdict(inputs), dict(environment)])


def _without_ignored(config: Mapping[str, object]) -> dict[str, object]:
    """The configuration without the draft length of a drafter that ignores it."""
    drafter = config["drafter"]
    assert isinstance(drafter, Mapping), "a drafter's configuration is a mapping"
    if drafter.get("_target_") != PLAIN_DRAFTER:
        return dict(config)
    return {**config, "drafter": {"_target_": drafter["_target_"]}}


def checkpoint_hash(folder: Path) -> str:
    """Hash of the files that a run reads of a checkpoint folder: their names, sizes and content.

    Of files above ``WHOLE_BYTES`` only both ends count: reading a large checkpoint whole would take longer than the
    run (30 MB take 25 ms). Two such files of equal size and ends are taken for the same.
    """
    digest = sha256()
    for path in sorted({path for pattern in CHECKPOINT_FILES for path in folder.glob(pattern) if path.is_file()}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                digest.update(file.read())
                continue
            digest.update(file.read(EDGE_BYTES))
            file.seek(size - EDGE_BYTES)
            digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()[:NUM_DIGITS]


@cache
def code_hash() -> str:
    """Hash of every source file of the project, as it lies on disk now."""
    root = Path(__file__).parents[1]
    return hash_of_sources((path.relative_to(root).as_posix(), path.read_bytes()) for path in _sources(root))


def hash_of_sources(files: Iterable[tuple[str, bytes]]) -> str:
    """Hash of source files of the code folders given by path and content, in any order."""
    digest = sha256()
    for path, content in sorted(files, key=lambda file: _place(PurePosixPath(file[0]))):
        digest.update(path.encode() + b"\n" + content)
    return digest.hexdigest()[:NUM_DIGITS]


def _place(path: PurePosixPath) -> tuple[int, str, str]:
    return CODE_FOLDERS.index(path.parts[0]), str(path.parent), path.name


def _sources(root: Path) -> Iterable[Path]:
    for name in CODE_FOLDERS:
        for folder, _, files in os.walk(root / name):
            yield from (Path(folder) / file for file in files if file.endswith(".py"))


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:NUM_DIGITS]
